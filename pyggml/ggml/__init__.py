"""The typed layer: ggml's contexts, tensors, buffers, devices and schedulers as Python objects.

    from pyggml.ggml import Context, Scheduler, VirtualDevices, cpu

It uses the bindings of pyggml.native.load.load(): `.raw` of every object is what functions of `load().lib` take.
"""

from pyggml.ggml.allocator import Allocator
from pyggml.ggml.context import Context
from pyggml.ggml.device import Backend, Buffer, BufferType, Device, cpu, device, devices
from pyggml.ggml.gguf_files import read_gguf, write_gguf
from pyggml.ggml.graph import Graph
from pyggml.ggml.handle import ClosedError, Handle, InUseError, ThreadError
from pyggml.ggml.meta import MetaDevice
from pyggml.ggml.ops import Ops
from pyggml.ggml.ownership import StaleError
from pyggml.ggml.scheduler import Scheduler
from pyggml.ggml.scheduler_splits import InputCopy, Split
from pyggml.ggml.split_state import Axis, SplitState
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
    "InUseError",
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
