"""The typed layer: ggml's contexts, tensors, buffers, devices and schedulers in people's own words.

    from pyggml.ggml import Context, Scheduler, VirtualDevices, cpu

It stands on pyggml.native.load.load(): `.raw` of every object is what `load().lib` takes.
"""

from pyggml.ggml.allocator import Allocator
from pyggml.ggml.backend import Backend
from pyggml.ggml.buffer import Buffer
from pyggml.ggml.context import Context
from pyggml.ggml.device import BufferType, Device, cpu, device, devices
from pyggml.ggml.gguf_files import read_gguf, write_gguf
from pyggml.ggml.graph import Graph
from pyggml.ggml.handle import ClosedError, Handle, ThreadError
from pyggml.ggml.memory import StaleError
from pyggml.ggml.meta import MetaDevice
from pyggml.ggml.ops import Ops
from pyggml.ggml.scheduler import Scheduler
from pyggml.ggml.split import Axis, SplitState
from pyggml.ggml.splits import InputCopy, Split
from pyggml.ggml.tensor import Tensor
from pyggml.ggml.types import TensorType, tensor_type
from pyggml.ggml.virtual import VirtualDevices

__all__ = [
    "Allocator",
    "Axis",
    "Backend",
    "Buffer",
    "BufferType",
    "ClosedError",
    "Context",
    "Device",
    "Graph",
    "Handle",
    "InputCopy",
    "MetaDevice",
    "Ops",
    "Scheduler",
    "Split",
    "SplitState",
    "StaleError",
    "Tensor",
    "TensorType",
    "ThreadError",
    "VirtualDevices",
    "cpu",
    "device",
    "devices",
    "read_gguf",
    "tensor_type",
    "write_gguf",
]
