"""TensorFlow on the rank's device."""

import tensorflow as tf

from harness.errors import UserError


def start_gpu(name: str) -> None:
    """Let TensorFlow take GPU memory as it needs it, not all at once. Call before its first operation.

    Raises:
        UserError: TensorFlow does not see the GPU called `name` (its CPU-only build, or no CUDA libraries).
    """
    devices = tf.config.list_physical_devices("GPU")
    if not devices:
        raise UserError(
            f"TensorFlow {tf.__version__} does not see the GPU '{name}': install its CUDA libraries with "
            "pip install 'mpi-tf-harness[gpu]', or use no GPUs"
        )
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)


def gpu_peak_bytes() -> int:
    """Return the most bytes that TensorFlow has had in use on the rank's GPU, 0 without one."""
    if not tf.config.list_logical_devices("GPU"):
        return 0
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
