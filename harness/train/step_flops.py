"""Floating-point operations of a traced step: those of its matrix products and convolutions.

A multiplication and an addition are two operations. What is element by element is left out, as is usual for the
utilisation of a device (Chowdhery et al. 2022, "PaLM", appendix B); a convolution's padding counts like values.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True, kw_only=True, slots=True)
class FlopCount:
    """The operations that were counted, and the kinds of TensorFlow's operations that could not be."""

    flops: float = 0.0
    uncounted: tuple[str, ...] = ()


@dataclass(slots=True)
class StepFlops:
    """What was counted of a step when it was traced: `per_row`, 0 before that, and what could not be counted."""

    per_row: float = 0.0
    uncounted: tuple[str, ...] = ()

    def note(self, outputs: Sequence[tf.Tensor], rows: int) -> None:
        """Count a step of `rows` rows that makes `outputs`, its loss and gradients; nothing outside of a graph."""
        if tf.executing_eagerly():
            return
        counted = count_flops(outputs)
        self.per_row = counted.flops / rows
        self.uncounted = counted.uncounted


def count_flops(outputs: Sequence[tf.Tensor]) -> FlopCount:
    """Return the floating-point operations that make `outputs`, tensors of one graph, with those of called functions.

    What else the graph has is left out, as it is when the graph is run: the gradient of a convolution always comes
    with that of its input, which a first layer does not need.
    """
    flops = 0.0
    uncounted: dict[str, None] = {}
    for operation in _needed(outputs):
        counted = _count(operation)
        flops += counted.flops
        uncounted.update(dict.fromkeys(counted.uncounted))
    return FlopCount(flops=flops, uncounted=tuple(uncounted))


def _needed(outputs: Sequence[tf.Tensor]) -> set[tf.Operation]:
    """Return the operations of the graph on which `outputs` depend."""
    waiting = [tensor.op for tensor in outputs]
    needed = set[tf.Operation]()
    while waiting:
        operation = waiting.pop()
        if operation not in needed:
            needed.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    return needed


def _count(operation: tf.Operation) -> FlopCount:
    if operation.type in _CALLS:
        return _functions_of(operation, ["f"])
    if operation.type in _CONTROL:
        inside = _functions_of(operation, _CONTROL[operation.type])
        has_work = bool(inside.flops or inside.uncounted)  # how often it is done is not known before
        return FlopCount(uncounted=(operation.type,) if has_work else ())
    if operation.type.startswith("CudnnRNN"):
        return FlopCount(uncounted=(operation.type,))
    rule = _RULES.get(operation.type)
    if rule is None:
        return FlopCount()
    flops = rule(operation)
    return FlopCount(uncounted=(operation.type,)) if flops is None else FlopCount(flops=flops)


def _functions_of(operation: tf.Operation, attributes: Sequence[str]) -> FlopCount:
    """Return what is in the functions that the `attributes` of an operation name."""
    outputs = []
    for attribute in attributes:
        value = operation.get_attr(attribute)
        for function in value if isinstance(value, list) else [value]:
            outputs += operation.graph._get_function(function.name).graph.outputs
    return count_flops(outputs)


def _size(shape: Any) -> float:
    """Return the number of elements of a shape, NaN where it is not known."""
    count = tf.TensorShape(shape).num_elements()
    return math.nan if count is None else float(count)


def _known(flops: float) -> float | None:
    return None if math.isnan(flops) else flops


def _matrix_product(operation: tf.Operation) -> float | None:
    is_batched = operation.type != "MatMul"
    is_transposed = operation.get_attr("adj_x" if is_batched else "transpose_a")
    left = operation.inputs[0].shape
    if left.rank is None or left.rank < 2:
        return None
    inner = left[-2 if is_transposed else -1]
    return _known(2 * _size(operation.outputs[0].shape) * _size([inner]))


def _convolution(operation: tf.Operation) -> float | None:
    return _by_filter(operation.outputs[0].shape, operation.inputs[1].shape)


def _convolution_to_input(operation: tf.Operation) -> float | None:
    return _by_filter(operation.inputs[2].shape, operation.inputs[1].shape)


def _convolution_to_filter(operation: tf.Operation) -> float | None:
    return _by_filter(operation.inputs[2].shape, operation.outputs[0].shape)


def _by_filter(values: tf.TensorShape, kernel: tf.TensorShape) -> float | None:
    """Return the operations of a convolution that gives, or takes, `values`: each meets one output's filter."""
    return None if kernel.rank is None else _known(2 * _size(values) * _size(kernel[:-1]))


def _depthwise(operation: tf.Operation) -> float | None:
    return _by_window(operation.outputs[0].shape, operation.inputs[1].shape)


def _depthwise_to_input(operation: tf.Operation) -> float | None:
    return _by_window(operation.inputs[2].shape, operation.inputs[1].shape)


def _depthwise_to_filter(operation: tf.Operation) -> float | None:
    return _by_window(operation.inputs[2].shape, operation.outputs[0].shape)


def _by_window(values: tf.TensorShape, kernel: tf.TensorShape) -> float | None:
    """Return the operations of a convolution that takes every channel for itself."""
    return None if kernel.rank is None else _known(2 * _size(values) * _size(kernel[:2]))


def _einsum(operation: tf.Operation) -> float | None:
    """Return two operations for each combination of the indices of two tensors."""
    equation = operation.get_attr("equation").decode()
    terms = equation.partition("->")[0].split(",")
    if len(terms) != 2:
        return 0.0 if len(terms) == 1 else None
    sizes: dict[str, float] = {}
    for term, tensor in zip(terms, operation.inputs, strict=True):
        if "." in term or tensor.shape.rank != len(term):
            return None
        sizes |= {index: _size([length]) for index, length in zip(term, tensor.shape, strict=True)}
    return _known(2 * math.prod(sizes.values()))


_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_CONTROL = {
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "While": ("body",),
    "StatelessWhile": ("body",),
}
_RULES: dict[str, Callable[[tf.Operation], float | None]] = {
    "MatMul": _matrix_product,
    "BatchMatMul": _matrix_product,
    "BatchMatMulV2": _matrix_product,
    "BatchMatMulV3": _matrix_product,
    "Einsum": _einsum,
    "Conv2D": _convolution,
    "Conv2DBackpropInput": _convolution_to_input,
    "Conv2DBackpropFilter": _convolution_to_filter,
    "Conv3D": _convolution,
    "Conv3DBackpropInputV2": _convolution_to_input,
    "Conv3DBackpropFilterV2": _convolution_to_filter,
    "DepthwiseConv2dNative": _depthwise,
    "DepthwiseConv2dNativeBackpropInput": _depthwise_to_input,
    "DepthwiseConv2dNativeBackpropFilter": _depthwise_to_filter,
}
