"""Whether a training step fits into a rank's memory, before it is made."""

import math
import platform
from collections import Counter
from collections.abc import Sequence

import keras
import psutil

from harness.base.cores import memory_limit
from harness.base.errors import SharedError, UserError
from harness.comm.gpus import Gpu
from harness.comm.world import World

_GIB = 2**30


_WEIGHT_COPIES = 4  # gradients, their sums, the optimizer's work, and the copy that warm-up restores


_BACKWARD = 1.6  # maps live at the same time over maps of the forward pass: measured with ResNet-50 on CPU


def predict_bytes(model: keras.Model, optimizer: keras.optimizers.Optimizer, *, rows: int, precision: str) -> int:
    """Return the bytes that a step of `rows` rows adds to what a process with model and optimizer already has.

    The maps that the forward pass keeps for the backward pass, and copies of the weights. An estimate: what the
    kernels' libraries need besides is in the factors.
    """
    size = 4 if precision == "float32" else 2
    maps = sum(math.prod(output.shape[1:]) for layer in model.layers for output in _outputs(layer))
    weights = sum(math.prod(variable.shape) for variable in model.trainable_variables) * 4
    slots = sum(math.prod(variable.shape) for variable in optimizer.variables) * 4
    total: int = int(maps * rows * size * _BACKWARD) + weights * _WEIGHT_COPIES + slots
    return total


def _outputs(layer: keras.Layer) -> Sequence[keras.KerasTensor]:
    """Return the outputs of `layer` that are memory of their own."""
    if not layer._inbound_nodes or isinstance(layer, (keras.layers.Flatten, keras.layers.Reshape)):
        return ()
    output = layer.output
    return output if isinstance(output, (list, tuple)) else (output,)


def refuse_too_large(world: World, needed: int, what: str, gpu: Gpu | None) -> int:
    """Return the peak that this rank will reach, in bytes: what it has now and `needed` more, or on a GPU `needed`.

    Raises:
        SharedError: on some host or GPU that is more than there is, for all ranks on it together.
    """
    if gpu is None:
        now = int(psutil.Process().memory_info().rss)
        place = platform.node()
        free = memory_limit()
    else:
        now = 0
        place = f"GPU {gpu.uuid}"
        free = int(float(gpu.memory_mib) * 2**20)
    asked = world.comm.allgather((place, needed, free))
    counts = Counter(name for name, _, _ in asked)
    for name, more, left in asked:
        if more * counts[name] > left:
            raise SharedError(
                UserError(
                    f"{what} needs about {more / _GIB:.1f} GiB for each rank's steps, but {name} has "
                    f"{left / _GIB:.1f} GiB left for {counts[name]}: use a smaller batch per rank"
                )
            )
    return now + needed
