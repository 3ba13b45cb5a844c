"""Horovod's collectives as TensorFlow operations, eager or in graphs, with their gradients."""

import os
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from harness.base.errors import UserError
from harness.comm.exchange_order import in_sequence
from harness.comm.lost_ranks import noting_loss
from harness.comm.native_library import find_library
from harness.comm.world import FAULT_TOLERANCE
from harness.horovod.compression import Compression
from harness.horovod.mpi_exchange import ADASUM, AVERAGE, MAX, MIN, OPERATIONS, PRODUCT, SUM, Request, Scales
from harness.horovod.process_sets import (
    ProcessSet,
    current_ranks,
    global_process_set,
    rank,
    size,
)

# Horovod's names.
Average = AVERAGE
Sum = SUM
Adasum = ADASUM
Min = MIN
Max = MAX
Product = PRODUCT
_NO_SCALES = (1.0, 1.0)


def exchange_tensors(
    request: Request,
    tensors: Sequence[tf.Tensor],
    ps: ProcessSet,
    scales: Scales = _NO_SCALES,
    splits: Any = None,
    unordered: bool = False,
) -> list[tf.Tensor]:
    """Make the exchange of `tensors`, at once or in the graph being built; `splits` are alltoall's.

    `unordered` as in `in_sequence`.

    Raises:
        UserError: the graph is compiled by XLA.
    """
    exchange = ps.exchange
    if request.kind == "allreduce" and native_sum(request.op, tensors) is NativeSum.SHARED:
        return _native_sums(request, tensors, ps, scales)
    extra = [] if splits is None else [tf.cast(splits, tf.int32)]
    if tf.executing_eagerly():
        request = request._replace(extra=_counts(extra))
        arrays = [tensor.numpy() for tensor in tensors]
        return [tf.constant(array) for array in exchange.run(request, arrays, scales)]
    refuse_xla()
    library = find_library().library
    refusal = None if library is None else library.operations.harness_refuse
    types = [tensor.dtype for tensor in tensors] + [tf.int32] * (request.kind == "alltoall")

    @tf.autograph.experimental.do_not_convert
    def run(*arrays: Any) -> list[Any]:
        values = arrays[: len(tensors)]
        asked = request._replace(extra=_counts(arrays[len(tensors) : -1]))
        try:
            with noting_loss():
                results = exchange.run(asked, values, scales)
        except (tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError) as error:
            if refusal is None:
                raise
            return [*(np.zeros(0, kind.as_numpy_dtype) for kind in types), np.int32(error.error_code), error.message]
        return results if refusal is None else [*results, np.int32(0), ""]

    with in_sequence(unordered=unordered) as sequence:
        more = [] if refusal is None else [tf.int32, tf.string]
        results = list(tf.nest.flatten(tf.numpy_function(run, [*tensors, *extra, sequence], [*types, *more])))
    if refusal is not None:
        *results, code, message = results
        with tf.device("CPU:0"), tf.control_dependencies([refusal(code=code, message=message)]):
            results = [tf.identity(result) for result in results]
    _set_shapes(request, results, tensors)
    return results


def _set_shapes(request: Request, results: Sequence[tf.Tensor], tensors: Sequence[tf.Tensor]) -> None:
    """Give the results the shapes that they surely have."""
    is_same = request.kind in ("allreduce", "broadcast")
    for result, tensor in zip(results, tensors, strict=False):
        result.set_shape(tensor.shape if is_same else [None, *tensor.shape[1:]])


class NativeSum(Enum):
    """Which of `GroupedSums` may make a sum; each includes those before it.

    `OWN` is `sum`: a call of its own, in a graph or at once, also over the ranks that are left when some have failed.
    `SHARED` is `sum_fused`: in a graph, in a call with other sums of its step; what is compiled is for today's ranks.
    """

    NONE = 0
    OWN = 1
    SHARED = 2


def native_sum(op: int, tensors: Sequence[tf.Tensor]) -> NativeSum:
    """Return how the native operation may sum `tensors`, the values of one exchange, for the Horovod operation `op`.

    A rank that has joined knows what comes next by Python's headers only.
    """
    if op not in (AVERAGE, SUM) or current_ranks().joins or not all(tensor.dtype.is_floating for tensor in tensors):
        return NativeSum.NONE
    if tf.executing_eagerly() or os.environ.get(FAULT_TOLERANCE):
        return NativeSum.OWN
    is_known = all(tensor.shape.is_fully_defined() for tensor in tensors)
    return NativeSum.SHARED if is_known and find_library().library is not None else NativeSum.OWN


def _native_sums(request: Request, tensors: Sequence[tf.Tensor], ps: ProcessSet, scales: Scales) -> list[tf.Tensor]:
    """Return the scaled sums or means, rounded as `Exchange` rounds them: 16-bit floats are summed as float32."""
    refuse_xla()
    before, after = scales
    name = f"allreduce '{request.name}' ({OPERATIONS[request.op]})"
    results: list[tf.Tensor] = list(tensors)
    types = [tf.float64 if tensor.dtype == tf.float64 else tf.float32 for tensor in tensors]
    for dtype in sorted(set(types), key=str):
        places = [place for place, kind in enumerate(types) if kind == dtype]
        values = [_times(tf.cast(tensors[place], dtype), before) for place in places]
        totals = ps.sums.sum_fused(values, [name] * len(values), "allreduce")
        factor = after if request.op == SUM else after / len(ps.exchange.ranks)
        for place, total in zip(places, totals, strict=True):
            results[place] = tf.cast(_times(total, factor), tensors[place].dtype)
    return results


def _times(value: tf.Tensor, factor: Any) -> tf.Tensor:
    is_one = isinstance(factor, float) and factor == 1.0
    return value if is_one else value * tf.cast(factor, value.dtype)


def _counts(extra: Sequence[Any]) -> tuple[int, ...]:
    """Return the numbers in the arrays of an exchange's splits, of which there is one or none."""
    return tuple(int(count) for count in extra[0]) if extra else ()


def refuse_xla() -> None:
    """Refuse to be built into a graph that XLA compiles.

    Raises:
        UserError: it does.
    """
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UserError("Horovod's operations cannot be compiled by XLA on processors: leave out jit_compile=True")


def _named(name: str | None, kind: str, tensors: Sequence[Any]) -> str:
    return name or (f"{kind} of {len(tensors)}" if len(tensors) > 1 else f"unnamed {kind}")


def _differentiable(
    request: Request, tensors: Sequence[Any], ps: ProcessSet, backward: Callable[..., list[tf.Tensor]], **words: Any
) -> list[tf.Tensor]:
    """Return `ask`'s results, none for no `tensors`; `backward` makes the gradients of `tensors` of its results'."""

    @tf.custom_gradient
    def call(*values: tf.Tensor) -> Any:
        return exchange_tensors(request, values, ps, **words), lambda *upstream: backward(*upstream)

    results = call(*[tf.convert_to_tensor(tensor) for tensor in tensors]) if tensors else []
    return list(results) if isinstance(results, (list, tuple)) else [results]


def operation(op: int | None, average: bool | None) -> int:
    """Return the operation that the two arguments ask for.

    Raises:
        ValueError: both are given.
    """
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if average is not None:
        return Average if average else Sum
    return Average if op is None else op


def _reduce(
    kind: str, tensors: Sequence[Any], name: str | None, op: int, scales: Scales, ps: ProcessSet
) -> list[tf.Tensor]:
    """Return allreduce's or reducescatter's results."""
    if op == Adasum and ps is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    if op == Adasum and size() & (size() - 1):
        raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")
    request = Request(kind, _named(name, kind, tensors), op)

    def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
        if kind == "allreduce":
            return _reduce(kind, upstream, f"{request.name}, backward", op, scales, ps)
        factor = scales[0] * scales[1] * (len(ps.exchange.ranks) if op == Sum else 1)
        scaled = [part * tf.cast(factor, part.dtype) for part in upstream]
        return grouped_allgather(scaled, f"{request.name}, backward", process_set=ps)

    return _differentiable(request, tensors, ps, backward, scales=scales)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Return the mean, or another `op`, of every rank's tensor, of one shape; IndexedSlices are gathered."""
    settings = (average, "", "", compression, op, prescale_factor, postscale_factor, process_set)
    return grouped_allreduce([tensor], *settings, name=name)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Return `allreduce` of several tensors in one exchange."""
    chosen = operation(op, average)
    scales = (prescale_factor, postscale_factor)
    slices = [tensor for tensor in tensors if isinstance(tensor, tf.IndexedSlices)]
    dense = [tensor for tensor in tensors if not isinstance(tensor, tf.IndexedSlices)]
    if slices and (chosen not in (Average, Sum) or scales != _NO_SCALES):
        raise NotImplementedError("Only Sum and Average ops without scales are supported with tf.IndexedSlices")
    gathered = [gathered_slices(tensor, chosen, process_set, name or "slices") for tensor in slices]
    sums = _packed("allreduce", dense, name, chosen, scales, process_set, compression) if dense else []
    return [(gathered if isinstance(tensor, tf.IndexedSlices) else sums).pop(0) for tensor in tensors]


def _packed(
    kind: str,
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    scales: Scales,
    ps: ProcessSet,
    compression: Any,
) -> list[Any]:
    """Return `_reduce` of what `compression` makes of the tensors, in their own types again."""
    packed = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    reduced = _reduce(kind, [tensor for tensor, _ in packed], name, op, (float(scales[0]), float(scales[1])), ps)
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, packed, strict=True)]


def gathered_slices(slices: tf.IndexedSlices, op: int, ps: ProcessSet, name: str) -> tf.IndexedSlices:
    """Return the slices of all ranks, their values divided by the ranks' number for a mean."""
    values, indices = grouped_allgather([slices.values, slices.indices], name, process_set=ps)
    if op == Average:
        values = values / ps.count(values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Return this rank's part of the rows of the mean, or the sum, of every rank's tensor."""
    scales = (prescale_factor, postscale_factor)
    return grouped_reducescatter([tensor], "", compression, op, process_set, *scales, name)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """Return `reducescatter` of several tensors in one exchange."""
    scales = (prescale_factor, postscale_factor)
    return _packed("reducescatter", tensors, name, op, scales, process_set, compression)


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Return every rank's rows, in order of ranks; their numbers may differ."""
    return grouped_allgather([tensor], name, process_set=process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Return `allgather` of several tensors in one exchange."""
    request = Request("allgather", _named(name, "allgather", tensors))
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]

    def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
        label = f"{request.name}, backward"
        parts = []
        for value, part in zip(values, upstream, strict=True):
            rows = exchange_tensors(Request("allgather", label), [tf.reshape(tf.shape(value)[0], [1])], process_set)[0]
            rows.set_shape([len(process_set.exchange.ranks)])
            mean = _reduce("allreduce", [part], label, Average, _NO_SCALES, process_set)[0]
            parts.append(tf.split(mean, rows)[process_set.exchange.ranks.index(rank())])
        return parts

    return _differentiable(request, values, process_set, backward)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Return rank `root_rank`'s tensor."""
    return grouped_broadcast([tensor], root_rank, name or "unnamed broadcast", process_set)[0]


def grouped_broadcast(
    tensors: Sequence[Any], root: int, name: str, ps: ProcessSet, unordered: bool = False
) -> list[tf.Tensor]:
    """Return rank `root`'s tensors, in one exchange; `unordered` as in `in_sequence`."""
    request = Request("broadcast", name, root=int(root))

    def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
        means = _reduce("allreduce", upstream, f"{name}, backward", Average, _NO_SCALES, ps)
        return means if rank() == root else [mean * 0 for mean in means]  # zeros_like would leave the exchange out

    return _differentiable(request, tensors, ps, backward, unordered=unordered)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the rows that every rank has sent to this one; with `splits`, how many from whom as well."""
    request = Request("alltoall", name or "unnamed alltoall")

    def backward(upstream: tf.Tensor, _: Any) -> list[tf.Tensor]:
        return [alltoall(upstream, received, f"{request.name}, backward", process_set=process_set)[0]]

    rows, received = _differentiable(request, [tensor], process_set, backward, splits=splits)
    received.set_shape([len(process_set.exchange.ranks)])
    return rows if splits is None else (rows, received)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait for all ranks of the set."""
    process_set.exchange.run(Request("barrier", ""))


def join() -> int:
    """Take part in the others' allreduces with zeros until all ranks have joined; return the last of them."""
    return global_process_set.exchange.join()
