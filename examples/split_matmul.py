"""A product split by columns, then by rows, over four virtual devices."""

import numpy as np

from pyggml.ggml import Context, MetaDevice, Scheduler, SplitState, VirtualDevices, cpu

random = np.random.default_rng(1)
up, down, x = (random.standard_normal(shape, np.float32) for shape in [(64, 32), (48, 64), (5, 32)])
axes = {"up": 1, "down": 0}  # as ggml counts them: a weight's outputs are axis 1, its inputs axis 0
with VirtualDevices(4) as devices:
    split = lambda t: SplitState.even(t, axes[t.name], 4) if t.name in axes else SplitState.mirrored()  # noqa: E731
    meta, weights, graph_context = MetaDevice(list(devices), split), Context("weights"), Context("graph")
    tensors = [weights.tensor("f32", array.shape, name) for name, array in (("up", up), ("down", down))]
    weights.allocate(meta).usage = "weights"
    tensors[0].set(up)
    tensors[1].set(down)
    ops, given = graph_context.ops, graph_context.tensor("f32", x.shape, "x").mark_input()
    result = ops.scale(ops.mul_mat(tensors[1], ops.mul_mat(tensors[0], given)), 1.0).mark_output()
    scheduler, graph = Scheduler([meta.backend(), cpu().backend()]), graph_context.graph(result)
    scheduler.allocate(graph)
    given.set(x)
    scheduler.compute(graph)
    print("largest difference to numpy:", np.abs(result.numpy() - x @ up.T @ down.T).max())
    print("bytes by kind of transfer:", devices.ledger().transfers().sums("kind"))
