"""TensorFlow-1 graphs: gradients are averaged in the graph, what is fed is divided at `Session.run`."""

import contextlib
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree
from tensorflow.python.client.session import BaseSession, _FetchMapper
from tensorflow.python.ops import gradients_impl
from tensorflow.python.training.optimizer import Optimizer

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.transparent.batch_rows import PLACE, bounds, placeholder
from harness.transparent.collectives import upstream
from harness.transparent.divided_random_numbers import DIVIDED, drawn_otherwise
from harness.transparent.gradients import GradientAverager
from harness.transparent.patch import HorovodScript, put, replace, script_place
from harness.transparent.preflight import compare, model_facts
from harness.transparent.probe import MIXED, first_part, is_sum
from harness.transparent.runtime import Runtime

_DRAWS = ("Random", "TruncatedNormal", "Multinomial", "CandidateSampler")
_STATEFUL = ("RandomUniform", "RandomStandardNormal", "TruncatedNormal")
_WRITES = ("Assign", "AssignV2", "AssignVariableOp", "RestoreV2")


class Sessions:
    """Knows which operations average gradients, and so which runs train."""

    def __init__(self, runtime: Runtime, synchroniser: GradientAverager) -> None:
        self._runtime = runtime
        self._synchroniser = synchroniser
        self._averaging: weakref.WeakKeyDictionary[tf.Graph, set[str]] = weakref.WeakKeyDictionary()
        self._kinds: weakref.WeakKeyDictionary[tf.Graph, dict[str, frozenset[str]]] = weakref.WeakKeyDictionary()
        self._tried: weakref.WeakKeyDictionary[tf.Graph, set[str]] = weakref.WeakKeyDictionary()
        self._whole: weakref.WeakSet[tf.Graph] = weakref.WeakSet()
        self._raw: weakref.WeakKeyDictionary[tf.Graph, list[tf.Tensor]] = weakref.WeakKeyDictionary()
        self._equal: weakref.WeakSet[Any] = weakref.WeakSet()
        self._variables: weakref.WeakKeyDictionary[Any, list[SessionVariable]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Replace the optimizers' `apply_gradients` (`minimize` calls it) and `run` of all sessions."""
        replace(Optimizer, "apply_gradients", ("self", "grads_and_vars", "global_step"), self._apply)
        replace(Optimizer, "compute_gradients", ("self", "loss", "var_list"), self._compute)
        replace(gradients_impl, "gradients", ("ys", "xs", "grad_ys"), self._gradients)
        replace(gradients_impl, "gradients_v2", ("ys", "xs", "grad_ys"), self._gradients)
        # Modules that are imported later, as by `import tensorflow.compat.v1`, take them from there.
        put(tf.compat.v1, "gradients", gradients_impl.gradients)
        put(tf, "gradients", gradients_impl.gradients_v2)
        replace(BaseSession, "run", ("self", "fetches", "feed_dict", "options", "run_metadata"), self._run)
        replace(BaseSession, "close", ("self",), self._close)

    def _compute(self, original: Callable[..., Any], optimizer: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        """Average gradients as they are computed: what a script does to them, it does to those of all ranks."""
        graph = not tf.compat.v1.executing_eagerly_outside_functions()
        if self._runtime.quiet or (callable(loss) and not graph):
            return original(optimizer, loss, *args, **kwargs)  # a function's gradients are yielded by a tape
        if not graph and not tf.executing_eagerly():
            raise UserError(
                f"the script takes compute_gradients of a tensor inside a tf.function ({script_place()}), which cannot "
                "be divided over the ranks: give it a function without arguments that returns the loss, or use a "
                "tf.GradientTape"
            )
        with self._runtime.quietly():
            pairs = original(optimizer, loss, *args, **kwargs)
        means = self._averaged([gradient for gradient, _ in pairs], [variable for _, variable in pairs], of_rank=True)
        return [(mean, variable) for mean, (_, variable) in zip(means, pairs, strict=True)]

    def _gradients(self, original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        """Average the gradients of variables that a graph's `tf.gradients` takes."""
        gradients = original(ys, xs, *args, **kwargs)
        sources = tf.nest.flatten(xs)
        if self._runtime.quiet or not all(hasattr(source, "initializer") for source in sources):
            return gradients
        if tf.compat.v1.executing_eagerly_outside_functions():
            raise UserError(
                f"the script takes tf.gradients inside a tf.function ({script_place()}), which cannot be divided over "
                "the ranks: take them from a tf.GradientTape"
            )
        return self._averaged(gradients, sources, of_rank=True)

    def _averaged(self, gradients: Sequence[Any], variables: Sequence[Any], *, of_rank: bool = False) -> list[Any]:
        """Return means over the ranks; `_averaging` knows the operations that make them from then on."""
        if not self._runtime.sync.shares_gradients:
            return list(gradients)
        graph = tf.compat.v1.get_default_graph()
        parts = tf.nest.flatten(list(gradients), expand_composites=True)
        operations = [part.op for part in parts if part is not None]
        kinds = {op.type for op in upstream(operations) if DIVIDED not in op.name}
        if any(draw in kind for kind in kinds for draw in _DRAWS) and self._runtime.compares_with_one_process:
            self._whole.add(graph)
            self._runtime.compute_whole(drawn_otherwise())
        names_before = {op.name for op in graph.get_operations()}
        means = self._synchroniser.gradients(gradients, variables, of_rank=of_rank)
        self._synchroniser.averaged(variables)
        fresh = {op.name for op in graph.get_operations() if op.name not in names_before}
        self._averaging.setdefault(graph, set()).update(fresh)
        pairs = zip(gradients, means, strict=True)
        raw = [gradient for gradient, mean in pairs if isinstance(gradient, tf.Tensor) and gradient is not mean]
        self._raw.setdefault(graph, []).extend(raw)
        return means

    def _apply(
        self, original: Callable[..., Any], optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        if self._runtime.quiet or not pairs:
            return original(optimizer, pairs, *args, **kwargs)
        if not self._runtime.sync.shares_gradients:
            raise UserError(
                f"{setting('sync', self._runtime.settings.sync)} is not for TensorFlow-1 optimizers: leave it at "
                "gradients"
            )
        compare(self._runtime, model_facts(optimizer, variables))
        graph = tf.compat.v1.get_default_graph()
        gradients = [gradient for gradient, _ in pairs]
        if tf.executing_eagerly() or hasattr(graph, "captures"):
            self._synchroniser.begin(variables)
            means = self._synchroniser.gradients(gradients, variables)
            self._runtime.count_step()
        else:
            means = self._averaged(gradients, variables)
        return original(optimizer, list(zip(means, variables, strict=True)), *args, **kwargs)

    def _run(
        self, original: Callable[..., Any], session: Any, fetches: Any, feed_dict: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a session: a run that trains is given this rank's rows of what is fed."""
        graph = session.graph
        if self._runtime.quiet or not self._averaging.get(graph):
            return original(session, fetches, feed_dict, *args, **kwargs)
        operations = _operations(graph, fetches)
        kinds = self._kinds_of(graph, operations)
        if "trains" not in kinds:
            if "writes" in kinds:
                self._equal.discard(session)  # initialised or restored, by every rank for itself
            outcome = original(session, fetches, feed_dict, *args, **kwargs)
            rows = self._fed(graph, feed_dict or {})[1]
            return self.average(outcome, rows) if self._runtime.own_rows.present and rows else outcome
        if session not in self._equal:
            self._start_equal(session, original)
        original = partial(run_fed, original)
        feed, rows = self.divide(graph, feed_dict or {})
        names = {op.name for op in operations}
        if not names <= self._tried.setdefault(graph, set()):
            self._tried[graph] |= names
            self._try(session, original, feed_dict or {}, {op.name for op in upstream(operations)})
            feed, rows = self.divide(graph, feed_dict or {})
        feed |= self._runtime.witness.off(graph)
        outcome = self.average(original(session, fetches, feed, *args, **kwargs), rows)

        def fed_only(fetch: Any, value: Any) -> Any:
            return value if "fed" in self._kinds_of(graph, _operations(graph, fetch)) else None

        self._runtime.witness.numbers("run", tree.map_structure_up_to(fetches, fed_only, fetches, outcome))
        return outcome

    def _try(self, session: Any, run: Callable[..., Any], feed: Mapping[Any, Any], run_names: set[str]) -> None:
        """Find out with the first batch whether its rows can be divided: the loss must be a mean over them.

        Only those of the graph's gradients count that are among `run_names`, the names of the operations of the run.

        Raises:
            UserError: it is no mean, and every rank has rows of its own.
        """
        graph = session.graph
        if graph not in self._whole and not self._runtime.own_rows.present and not self._runtime.begin_judged():
            self._whole.add(graph)
            return
        raw = [gradient for gradient in self._raw.get(graph, []) if gradient.op.name in run_names]
        arrays, rows = self._fed(graph, feed)
        if not raw or rows < 2:
            return
        batch = {key: value for key, value in arrays.items() if _of_batch(key, value, rows)}
        first = first_part(rows)
        parts = [slice_rows(batch, 0, first), slice_rows(batch, first, rows)]
        take = partial(_gradients_without_draws, session, run, raw)
        gradients = [take({**arrays, **part}) for part in (batch, *parts, batch)]
        is_mixed = is_sum(gradients, rows) is not False
        is_mixed = self._runtime.collectives.gather(is_mixed, "trial of the gradients")[0]
        if is_mixed and self._runtime.own_rows.present:
            raise UserError(
                "the loss of the TensorFlow-1 graph is not a mean over independent rows, which cannot be "
                "made of every rank's own rows: make it a mean (tf.reduce_mean), or leave out DataSet"
            )
        if is_mixed:
            self._whole.add(graph)
            self._runtime.compute_whole(MIXED)

    def _kinds_of(self, graph: Any, operations: Sequence[Any]) -> frozenset[str]:
        """Return what running `operations` does: ``trains``, ``writes`` variables otherwise, uses what is ``fed``.

        Any of the three, or none. A value that does not follow from what is fed, such as a count of steps, is read
        before or after the run writes it: TensorFlow does not say which.
        """
        kinds_by_name = self._kinds.setdefault(graph, {})
        kinds: frozenset[str] = frozenset()
        for op in operations:
            if op.name not in kinds_by_name:
                kinds_by_name[op.name] = operation_kinds(op, self._averaging[graph])
            kinds |= kinds_by_name[op.name]
        return kinds

    def _start_equal(self, session: Any, run: Callable[..., Any]) -> None:
        """Give all variables of the graph rank 0's values."""
        with session.graph.as_default():
            variables = [SessionVariable(variable, session, run) for variable in tf.compat.v1.global_variables()]
        with self._runtime.quietly():  # the graph may be finalised: no new operation
            numbers = [variable for variable in variables if variable.dtype != tf.string]
            self._runtime.variables.start_equal(numbers, "initial weights")
        self._equal.add(session)
        self._variables[session] = variables
        self._runtime.variables.remember(variables)

    def _close(self, original: Callable[..., Any], session: Any) -> None:
        """Keep the values of a session that has trained: they go with it."""
        for variable in self._variables.pop(session, []):
            variable.numpy()
        original(session)

    def divide(self, graph: Any, feed: Mapping[Any, Any]) -> tuple[dict[Any, Any], int]:
        """Return this rank's rows of everything fed that has as many rows as the batch, and their number."""
        rank, size = self._runtime.world.rank, self._runtime.world.size
        arrays, total = self._fed(graph, feed)
        if self._runtime.own_rows.present:
            rows = total or 1
            return {**feed, placeholder(graph, self._runtime.rows.default): float(rows)}, rows
        if not total:
            fixed = [key for key, value in arrays.items() if value.ndim and key.shape.as_list()[0] > 1]
            why = f"placeholder '{fixed[0].name}' takes exactly {fixed[0].shape.as_list()[0]} rows" if fixed else ""
            self._runtime.compute_whole(why or "a training run of the session is fed no batch that can be divided")
        if graph in self._whole or not total:
            weight = float(rank == 0)
            return {**feed, placeholder(graph, self._runtime.rows.default): weight}, (total or 1) * (rank == 0)
        begin, count = bounds(total, rank, size)
        begin = min(begin, total - 1)
        end = begin + max(count, 1)
        divided: dict[Any, Any] = {
            key: value[begin:end] if _of_batch(key, value, total) else value for key, value in arrays.items()
        }
        self._runtime.divided += 1
        divided[placeholder(graph, self._runtime.rows.default)] = float(count)
        with contextlib.suppress(KeyError):  # nothing that draws has asked for it
            divided[graph.get_tensor_by_name(f"{PLACE}:0")] = (begin, total)
        return divided, int(count)

    def _fed(self, graph: Any, feed: Mapping[Any, Any]) -> tuple[dict[Any, Any], int]:
        """Return what is fed as arrays, and how many rows the batch has: 0 when nothing with rows is fed."""
        if any(isinstance(key, tf.SparseTensor) for key in feed):
            return {}, 0
        arrays = {graph.as_graph_element(key): np.asarray(value) for key, value in feed.items()}
        batched = [value for key, value in arrays.items() if value.ndim and _open(key.shape)]
        return arrays, len(batched[0]) if batched else 0

    @np.errstate(all="ignore")  # the script may have asked NumPy to raise
    def average(self, outcome: Any, rows: int) -> Any:
        """Return `outcome` with floating scalars (losses) as means over the ranks, weighted by rows."""
        leaves = tree.flatten(outcome)
        chosen = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.floating)]
        if not chosen:
            return outcome
        values = np.array([float(leaves[i]) for i in chosen])
        parts = self._runtime.collectives.gather((rows, values if rows else 0 * values), "reported numbers")
        means = sum(n * np.nan_to_num(v) if not n else n * v for n, v in parts) / sum(n for n, _ in parts)
        for i, mean in zip(chosen, means, strict=True):
            leaves[i] = type(leaves[i])(mean)
        return tree.pack_sequence_as(outcome, leaves)


def keep_trained_at_close() -> None:
    """Keep what a graph with an optimizer of TensorFlow 1 has trained, where the script is its own master."""
    replace(BaseSession, "close", ("self",), _keep_and_close, stays=True)


def _keep_and_close(original: Callable[..., Any], session: Any) -> None:
    from harness.horovod.averaging import trained

    graph = session.graph
    if HorovodScript.active and not session._closed and graph.get_collection(tf.compat.v1.GraphKeys.TRAIN_OP):
        variables = graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
        held = [SessionVariable(variable, session, BaseSession.run) for variable in variables]
        with contextlib.suppress(tf.errors.FailedPreconditionError):  # a session that was never initialised
            for variable in held:
                variable.numpy()
            trained.update((id(variable), variable) for variable in held)
    original(session)


class SessionVariable:
    """A variable together with the session that holds its value, for the comparison of the replicas."""

    def __init__(self, variable: Any, session: Any, run: Callable[..., Any]) -> None:
        self.path = variable.name
        self.dtype = variable.dtype.base_dtype
        self._variable = variable
        self._session = session
        self._run = run
        self._last: Any = None

    def assign(self, value: Any) -> None:
        """Set the value, in an open session."""
        self._variable.load(value, self._session)

    def numpy(self) -> Any:
        """Return the value, or the last one seen when the session has been closed."""
        if not self._session._closed:
            self._last = np.asarray(self._run(self._session, self._variable))
        return self._last


def run_fed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a session.

    Raises:
        UserError: a placeholder is not fed on which averages of another training of the graph depend.
    """
    try:
        return original(*args, **kwargs)
    except tf.errors.InvalidArgumentError as error:
        missing = re.search("You must feed a value for placeholder tensor ('.*?')", str(error))
        if missing is None:
            raise
        raise UserError(
            f"a training run of the session does not feed placeholder {missing[1]}, and on several ranks all gradients "
            "of a graph are averaged in one order: feed it in every training run, or give each training its own graph"
        ) from None


def _operations(graph: Any, fetches: Any) -> list[Any]:
    with graph.as_default():
        elements = _FetchMapper.for_fetch(fetches).unique_fetches()  # hooks as keys: tf.nest cannot sort them
    return [element if isinstance(element, tf.Operation) else element.op for element in elements]


def _open(shape: tf.TensorShape) -> bool:
    """Tell whether a placeholder of this shape takes batches of any length."""
    return shape.rank is None or bool(shape.rank and shape.as_list()[0] is None)


def _of_batch(key: Any, value: Any, rows: int) -> bool:
    return bool(value.ndim) and _open(key.shape) and len(value) == rows


def operation_kinds(op: Any, averaging: set[str]) -> frozenset[str]:
    """Return what running `op` does: see `Sessions._kinds_of`. Operations in `averaging` train."""
    operations = upstream([op])
    kinds = set()
    if any(operation.name in averaging for operation in operations):
        kinds.add("trains")
    if any(operation.type.startswith("Placeholder") for operation in operations):
        kinds.add("fed")
    if any(operation.type in _WRITES for operation in operations):
        kinds.add("writes")
    return frozenset(kinds)


def slice_rows(batch: Mapping[Any, Any], begin: int, end: int) -> dict[Any, Any]:
    """Return the rows from `begin` to `end` of what is fed."""
    return {key: value[begin:end] for key, value in batch.items()}


def _gradients_without_draws(
    session: Any, run: Callable[..., Any], gradients: Sequence[tf.Tensor], feed: Mapping[Any, Any]
) -> "np.ndarray[Any, Any]":
    """Return all numbers of `gradients`, float64 [n], with the same random numbers for every row.

    The random numbers are fed, as a trial must not advance the state of the operations that draw them.
    """
    operations = [gradient.op for gradient in gradients]
    drawing = [op for op in upstream(operations) if op.type in _STATEFUL]
    draws = [op for op in drawing if session.graph.is_feedable(op.outputs[0])]
    fed = dict(feed)
    for op, shape in zip(draws, run(session, [op.inputs[0] for op in draws], fed), strict=True):
        drawn = np.random.RandomState(0).uniform(0.02, 0.98, shape[1:])
        fed[op.outputs[0]] = np.broadcast_to(drawn, shape)
    return np.concatenate([np.float64(part).ravel() for part in run(session, list(gradients), fed)])
