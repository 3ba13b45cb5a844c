"""TensorFlow on the rank's device, and how much memory training will take there."""

import functools
import math
import os
import platform
import tempfile
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import keras
import psutil
import tensorflow as tf

from harness.base.cores import memory_limit
from harness.base.errors import SharedError, UserError
from harness.base.hostlock import SCRATCH, of_process
from harness.comm.gpus import INSTALL_CUDA, Gpu, hide_others
from harness.comm.world import World


def start_gpu(gpu: Gpu | None) -> None:
    """Have TensorFlow see `gpu` alone and take its memory as it needs it, not all at once; None for no GPU at all.

    Call before its first operation: from then on CUDA_VISIBLE_DEVICES, which a script may set, is not asked any more.

    Raises:
        UserError: TensorFlow does not see the GPU (its CPU-only build, or no CUDA libraries).
    """
    hide_others(gpu)
    devices = tf.config.list_physical_devices("GPU")
    if gpu and not devices:
        raise UserError(
            f"TensorFlow {tf.__version__} does not see the GPU '{gpu.name}': install its CUDA libraries with "
            f"{INSTALL_CUDA}, or use no GPUs"
        )
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)


def keep_generated_files() -> None:
    """Let TensorFlow write the code that it generates into the launch's own folder, or else this process's.

    It removes such files when a process ends by itself; a rank that is killed would leave them for ever.
    """
    if SCRATCH not in os.environ:
        os.environ.update({name: path for name, path in of_process().variables.items() if name == SCRATCH})
    folder = os.environ.get(SCRATCH)
    if folder:
        from tensorflow.python.autograph.pyct import loader

        loader.tempfile = SimpleNamespace(NamedTemporaryFile=functools.partial(tempfile.NamedTemporaryFile, dir=folder))


def gpu_peak_bytes() -> int:
    """Return the most bytes that TensorFlow has had in use on the rank's GPU, 0 without one."""
    if not tf.config.list_logical_devices("GPU"):
        return 0
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


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


def check_memory(world: World, needed: int, what: str, gpu: Gpu | None) -> int:
    """Return the peak that this rank will reach, in bytes: what it has now and `needed` more, or on a GPU `needed`.

    Raises:
        SharedError: on some host or GPU that is more than there is, for all ranks on it together.
    """
    if gpu is None:
        now, place, free = int(psutil.Process().memory_info().rss), platform.node(), memory_limit()
    else:
        now, place, free = 0, f"GPU {gpu.uuid}", int(float(gpu.memory_mib) * 2**20)
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
