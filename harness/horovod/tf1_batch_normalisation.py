"""Batch normalisation as ``tf.layers`` had it: of its layers the one that TensorFlow no longer ships."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import smart_cond
from tensorflow.python.keras.legacy_tf_layers.base import Layer

_FUSED_RANK = 4  # dimensions of what TensorFlow's fused operation takes


class BatchNormalization(Layer):
    """Normalise each channel over the batch, or by moving moments where it is not training.

    The moving moments are moved by operations in the graph's collection UPDATE_OPS, as scripts of TensorFlow 1 expect
    it. Words that only tune it (`fused`) are taken.

    Raises:
        ValueError: `renorm`, `virtual_batch_size` or `adjustment` is asked for, which are not offered.
    """

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        moving_mean_initializer: Any = None,
        moving_variance_initializer: Any = None,
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        renorm: bool = False,
        renorm_clipping: Any = None,
        renorm_momentum: float = 0.99,
        fused: bool | None = None,
        trainable: bool = True,
        virtual_batch_size: int | None = None,
        adjustment: Callable[..., Any] | None = None,
        name: str | None = None,
        **others: Any,
    ) -> None:
        super().__init__(trainable=trainable, name=name, **others)
        if renorm or virtual_batch_size is not None or adjustment is not None:
            raise ValueError("renorm=, virtual_batch_size= and adjustment= of tf.layers.BatchNormalization: leave out")
        self.axis = axis if isinstance(axis, int) else axis[0]
        self.momentum = momentum
        self.epsilon = epsilon
        zeros = tf.compat.v1.zeros_initializer()
        ones = tf.compat.v1.ones_initializer()
        self._beta = (beta_initializer or zeros, beta_regularizer, beta_constraint) if center else None
        self._gamma = (gamma_initializer or ones, gamma_regularizer, gamma_constraint) if scale else None
        self._moving = (moving_mean_initializer or zeros, moving_variance_initializer or ones)

    def build(self, input_shape: Any) -> None:
        """Make the variables, float32 [channels] for inputs of 16 bits too."""
        shape = tf.TensorShape(input_shape)
        self.axis %= shape.rank
        self._channels = shape[self.axis]
        self.gamma = self._weight("gamma", self._gamma)
        self.beta = self._weight("beta", self._beta)
        self.moving_mean = self._moving_weight("moving_mean", self._moving[0])
        self.moving_variance = self._moving_weight("moving_variance", self._moving[1])
        self.built = True

    def _weight(self, name: str, settings: Any) -> Any:
        if settings is None:
            return None
        initializer, regularizer, constraint = settings
        return self.add_weight(
            name=name,
            shape=[self._channels],
            dtype=tf.float32,
            initializer=initializer,
            regularizer=regularizer,
            constraint=constraint,
            trainable=self.trainable,
        )

    def _moving_weight(self, name: str, initializer: Any) -> Any:
        shape = [self._channels]
        return self.add_weight(name=name, shape=shape, dtype=tf.float32, initializer=initializer, trainable=False)

    def call(self, inputs: Any, training: Any = False) -> Any:
        """Return the normalised `inputs`; `training` is a bool, or a scalar tensor that says it at every run."""
        gamma = tf.ones([self._channels]) if self.gamma is None else tf.convert_to_tensor(self.gamma)
        beta = tf.zeros([self._channels]) if self.beta is None else tf.convert_to_tensor(self.beta)
        moving = (tf.convert_to_tensor(self.moving_mean), tf.convert_to_tensor(self.moving_variance))
        outputs, mean, variance = smart_cond.smart_cond(
            training,
            lambda: self._by_batch(inputs, gamma, beta),
            lambda: (self._by_moments(inputs, gamma, beta, *moving), *moving),
        )
        outputs.set_shape(inputs.shape)
        is_fixed = isinstance(training, bool) and not training
        if self.trainable and not is_fixed:
            # Outside of training the difference is zero, and nothing moves.
            for variable, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
                difference = (tf.convert_to_tensor(variable) - tf.cast(value, tf.float32)) * (1 - self.momentum)
                self.add_update(tf.compat.v1.assign_sub(variable, difference))
        return outputs

    def _by_batch(self, inputs: Any, gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
        """Return the outputs, and mean and variance of the batch."""
        formats = {3: "NHWC", 1: "NCHW"}
        if inputs.shape.rank == _FUSED_RANK and self.axis in formats:
            fused = tf.compat.v1.nn.fused_batch_norm
            return tuple(fused(inputs, gamma, beta, epsilon=self.epsilon, data_format=formats[self.axis]))
        dimensions = [dimension for dimension in range(inputs.shape.rank) if dimension != self.axis]
        mean, variance = tf.nn.moments(tf.cast(inputs, tf.float32), dimensions)
        return self._by_moments(inputs, gamma, beta, mean, variance), mean, variance

    def _by_moments(self, inputs: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
        shape = [1] * inputs.shape.rank
        shape[self.axis] = self._channels
        mean, variance, beta, gamma = (tf.reshape(value, shape) for value in (mean, variance, beta, gamma))
        values = tf.cast(inputs, tf.float32)
        return tf.cast(tf.nn.batch_normalization(values, mean, variance, beta, gamma, self.epsilon), inputs.dtype)


def batch_normalization(
    inputs: Any, axis: int = -1, *, training: Any = False, name: str | None = None, reuse: Any = None, **words: Any
) -> Any:
    """Return `inputs` normalised by a new layer, or by that of the same name with `reuse`."""
    layer = BatchNormalization(axis=axis, name=name, _reuse=reuse, _scope=name, **words)
    return layer.apply(inputs, training=training)
