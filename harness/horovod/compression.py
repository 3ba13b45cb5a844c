"""How tensors travel: as they are, or as float16."""

import tensorflow as tf


def _as_float16(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType]:
    return tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor, tensor.dtype


class NoneCompressor:
    """Sends tensors as they are: `compress` returns what is sent and what `decompress` needs."""

    compress = staticmethod(lambda tensor: (tensor, None))
    decompress = staticmethod(lambda tensor, ctx: tensor)


class FP16Compressor:
    """Sends floating-point tensors as float16."""

    compress = staticmethod(_as_float16)
    decompress = staticmethod(lambda tensor, ctx: tf.cast(tensor, ctx))


class Compression:
    """How gradients travel."""

    none = NoneCompressor
    fp16 = FP16Compressor
