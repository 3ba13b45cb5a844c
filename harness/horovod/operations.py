"""Horovod's collectives as TensorFlow operations, eager or in graphs, with their gradients."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from harness.base.errors import UserError
from harness.comm.native_library import find_library
from harness.comm.reduction import in_sequence
from harness.horovod.mpi_exchange import AVERAGE, MAX, MIN, OPERATIONS, PRODUCT, SUM, Request
from harness.horovod.not_offered import refuse_arguments
from harness.horovod.ranks import current_ranks, rank, size

# Horovod's names.
Average = AVERAGE
Sum = SUM
Min = MIN
Max = MAX
Product = PRODUCT


class NoneCompressor:
    """Sends tensors as they are: `compress` returns what is sent and what `decompress` needs."""

    compress = staticmethod(lambda tensor: (tensor, None))
    decompress = staticmethod(lambda tensor, ctx: tensor)


def _as_float16(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType]:
    return tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor, tensor.dtype


class FP16Compressor:
    """Sends floating-point tensors as float16."""

    compress = staticmethod(_as_float16)
    decompress = staticmethod(lambda tensor, ctx: tf.cast(tensor, ctx))


class Compression:
    """How gradients travel."""

    none = NoneCompressor
    fp16 = FP16Compressor


def exchange_tensors(request: Request, tensors: Sequence[tf.Tensor], unordered: bool = False) -> list[tf.Tensor]:
    """Make the exchange of `tensors`, at once or in the graph being built; `unordered` as in `in_sequence`.

    Raises:
        UserError: the graph is compiled by XLA.
    """
    exchange = current_ranks().exchange
    if request.kind == "allreduce" and native_sum(request.op, tensors) is NativeSum.SHARED:
        return _native_sums(request, tensors)
    if tf.executing_eagerly():
        values = [tensor.numpy() for tensor in tensors]
        return [tf.constant(array) for array in exchange.run(request, values)]
    refuse_xla()
    library = find_library().library
    refusal = None if library is None else library.operations.harness_refuse
    types = [tensor.dtype for tensor in tensors]

    @tf.autograph.experimental.do_not_convert
    def run(*arrays: Any) -> list[Any]:
        try:
            results = exchange.run(request, arrays[: len(tensors)])
        except (tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError) as error:
            if refusal is None:
                raise
            return [*(np.zeros(0, kind.as_numpy_dtype) for kind in types), np.int32(error.error_code), error.message]
        return results if refusal is None else [*results, np.int32(0), ""]

    with in_sequence(unordered=unordered) as sequence:
        more = [] if refusal is None else [tf.int32, tf.string]
        results = list(tf.nest.flatten(tf.numpy_function(run, [*tensors, sequence], [*types, *more])))
    if refusal is not None:
        *results, code, message = results
        with tf.device("CPU:0"), tf.control_dependencies([refusal(code=code, message=message)]):
            results = [tf.identity(result) for result in results]
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape([None, *tensor.shape[1:]] if request.kind == "allgather" else tensor.shape)
    return results


class NativeSum(Enum):
    """Which of `GroupedSums` may make a sum; each includes those before it.

    `OWN` is `sum`: a call of its own, in a graph or at once. `SHARED` is `sum_fused`: in a graph, in a call with other
    sums of its step.
    """

    NONE = 0
    OWN = 1
    SHARED = 2


def native_sum(op: int, tensors: Sequence[tf.Tensor]) -> NativeSum:
    """Return how the native operation may sum `tensors`, the values of one exchange, for the Horovod operation `op`."""
    if op not in (AVERAGE, SUM) or not all(tensor.dtype.is_floating for tensor in tensors):
        return NativeSum.NONE
    if tf.executing_eagerly():
        return NativeSum.OWN
    is_known = all(tensor.shape.is_fully_defined() for tensor in tensors)
    return NativeSum.SHARED if is_known and find_library().library is not None else NativeSum.OWN


def _native_sums(request: Request, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the sums or means, rounded as `Exchange` rounds them: 16-bit floats are summed as float32."""
    refuse_xla()
    name = f"allreduce '{request.name}' ({OPERATIONS[request.op]})"
    results: list[tf.Tensor] = list(tensors)
    types = [tf.float64 if tensor.dtype == tf.float64 else tf.float32 for tensor in tensors]
    for dtype in sorted(set(types), key=str):
        places = [place for place, kind in enumerate(types) if kind == dtype]
        values = [tf.cast(tensors[place], dtype) for place in places]
        totals = current_ranks().sums.sum_fused(values, [name] * len(values), "allreduce")
        for place, total in zip(places, totals, strict=True):
            if request.op == AVERAGE:
                total *= tf.cast(1 / size(), dtype)
            results[place] = tf.cast(total, tensors[place].dtype)
    return results


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
    request: Request, tensors: Sequence[Any], backward: Callable[..., list[tf.Tensor]], unordered: bool = False
) -> list[tf.Tensor]:
    """Return the exchange's results, none for no `tensors`; `backward` makes the gradients of `tensors` of theirs."""

    @tf.custom_gradient
    def call(*values: tf.Tensor) -> Any:
        return exchange_tensors(request, values, unordered), lambda *upstream: backward(*upstream)

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


def _reduce(tensors: Sequence[Any], name: str | None, op: int) -> list[tf.Tensor]:
    """Return the reduced tensors, which are differentiable."""
    request = Request("allreduce", _named(name, "allreduce", tensors), op)

    def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
        return _reduce(upstream, f"{request.name}, backward", op)

    return _differentiable(request, tensors, backward)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    *,
    name: str | None = None,
    ignore_name_scope: bool = False,
    **others: Any,
) -> Any:
    """Return the mean, or another `op`, of every rank's tensor, of one shape; IndexedSlices are gathered."""
    return grouped_allreduce([tensor], average, "", "", compression, op, name=name, **others)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    *,
    name: str | None = None,
    ignore_name_scope: bool = False,
    **others: Any,
) -> list[Any]:
    """Return `allreduce` of several tensors in one exchange."""
    refuse_arguments("allreduce", others)
    chosen = operation(op, average)
    slices = [tensor for tensor in tensors if isinstance(tensor, tf.IndexedSlices)]
    dense = [tensor for tensor in tensors if not isinstance(tensor, tf.IndexedSlices)]
    if slices and chosen not in (Average, Sum):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    gathered = [gathered_slices(tensor, chosen, name or "slices") for tensor in slices]
    packed = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in dense]
    reduced = _reduce([tensor for tensor, _ in packed], name, chosen)
    sums = [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, packed, strict=True)]
    return [(gathered if isinstance(tensor, tf.IndexedSlices) else sums).pop(0) for tensor in tensors]


def gathered_slices(slices: tf.IndexedSlices, op: int, name: str) -> tf.IndexedSlices:
    """Return the slices of all ranks, their values divided by the ranks' number for a mean."""
    values, indices = grouped_allgather([slices.values, slices.indices], name)
    if op == Average:
        values = values / tf.constant(size(), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False, **others: Any) -> tf.Tensor:
    """Return every rank's rows, in order of ranks; their numbers may differ."""
    return grouped_allgather([tensor], name, **others)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False, **others: Any
) -> list[tf.Tensor]:
    """Return `allgather` of several tensors in one exchange."""
    refuse_arguments("allgather", others)
    request = Request("allgather", _named(name, "allgather", tensors))
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]

    def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
        label = f"{request.name}, backward"
        parts = []
        for value, part in zip(values, upstream, strict=True):
            rows = exchange_tensors(Request("allgather", label), [tf.reshape(tf.shape(value)[0], [1])])[0]
            rows.set_shape([size()])
            mean = _reduce([part], label, Average)[0]
            parts.append(tf.split(mean, rows)[rank()])
        return parts

    return _differentiable(request, values, backward)


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False, **others: Any
) -> tf.Tensor:
    """Return rank `root_rank`'s tensor."""
    refuse_arguments("broadcast", others)
    return _grouped_broadcast([tensor], root_rank, name or "unnamed broadcast")[0]


def _grouped_broadcast(tensors: Sequence[Any], root: int, name: str, unordered: bool = False) -> list[tf.Tensor]:
    """Return rank `root`'s tensors, in one exchange; `unordered` as in `in_sequence`."""
    request = Request("broadcast", name, root=int(root))

    def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
        means = _reduce(upstream, f"{name}, backward", Average)
        return means if rank() == root else [mean * 0 for mean in means]  # zeros_like would leave the exchange out

    return _differentiable(request, tensors, backward, unordered)


def broadcast_(variables: Sequence[Any], root_rank: int, name: str | None = None, **others: Any) -> list[tf.Tensor]:
    """Give `variables` rank `root_rank`'s values and return these."""
    refuse_arguments("broadcast_", others)
    values = _grouped_broadcast(variables, root_rank, name or "variables")
    done = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
    with tf.control_dependencies([] if tf.executing_eagerly() else [each for each in done if each is not None]):
        return [tf.identity(value) for value in values]


def broadcast_variables(variables: Any, root_rank: int, inplace: bool = False, **others: Any) -> Any:
    """Give `variables`, TensorFlow's or Keras's, rank `root_rank`'s values, in one exchange."""
    refuse_arguments("broadcast_variables", others)
    chosen = [variable for variable in variables if getattr(variable, "dtype", None) not in ("string", tf.string)]
    return tf.group(*broadcast_(chosen, root_rank)) if chosen else tf.no_op()


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation that gives all variables of a TensorFlow-1 graph rank `root_rank`'s values.

    Raises:
        RuntimeError: there is no graph.
    """
    if tf.executing_eagerly():
        raise RuntimeError("hvd.broadcast_global_variables() does not support eager execution: use broadcast_variables")
    variables = tf.compat.v1.global_variables()
    values = _grouped_broadcast(variables, root_rank, "global variables", unordered=True)
    return tf.group(*[variable.assign(value) for variable, value in zip(variables, values, strict=True)])


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all variables rank `root_rank`'s values once a TensorFlow-1 session has been made."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        self._root = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """Build the operation."""
        self._operation = broadcast_global_variables(self._root)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self._operation)


def broadcast_object(obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None, **others: Any) -> Any:
    """Return rank `root_rank`'s object, pickled on the way."""
    refuse_arguments("broadcast_object", others)
    return current_ranks().exchange.run(Request("object", name or "object", root=root_rank), value=obj)[0]


def barrier(**others: Any) -> None:
    """Wait for all ranks."""
    refuse_arguments("barrier", others)
    current_ranks().exchange.run(Request("barrier", ""))


def join() -> int:
    """Wait until all ranks have come here, and return the last rank: scripts call it after their last step.

    A rank that still asks for sums meets this in an exchange of another kind, which is an error on all ranks.
    """
    current_ranks().exchange.run(Request("join", ""))
    return size() - 1
