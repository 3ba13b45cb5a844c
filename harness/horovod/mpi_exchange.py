"""One exchange among some ranks, made from Python: what all ask for is compared first, then it is done.

Ranks meet in exchanges in the order in which each asks for them. A header goes before the data: kind, name, operation,
root, shapes and types. From the same headers every rank comes to the same conclusion, so that all raise or none.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.turns import clock

if TYPE_CHECKING:
    from mpi4py import MPI

    from harness.comm.hang import HangWatch

Array = npt.NDArray[Any]
Scales = tuple[float, float]  # before and after a reduction
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)
OPERATIONS = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


class Request(NamedTuple):
    """What one rank asks for: `shapes` are (dtype, shape) of its tensors, `extra` its splits or an object's place."""

    kind: str
    name: str
    op: int = SUM
    root: int = 0
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    extra: tuple[int, ...] = ()


calls: list[tuple[float, float]] | None = None
"""Begin and end of every exchange, by `harness.base.turns.clock`; None where nobody asks."""
_DIGEST_BYTES = 16
_JOIN = "join"
_FREE_ROWS = ("allgather", "alltoall")  # whose first dimensions may differ


def disagreement(requests: Sequence[Request], ranks: Sequence[int]) -> str:
    """Return how the `requests` of `ranks` do not fit each other, a sentence, or nothing."""
    pairs = list(zip(ranks, requests, strict=True))
    asked = [(rank, request) for rank, request in pairs if request.kind != _JOIN]
    if not asked:
        return ""
    first_rank, first = asked[0]
    if len(asked) < len(requests) and first.kind not in ("allreduce", "barrier"):
        joined = next(rank for rank, request in pairs if request.kind == _JOIN)
        wish = f"rank {first_rank} asks for {first.kind} '{first.name}'"
        return f"rank {joined} has joined, {wish}: only allreduce goes on"
    for rank, request in asked[1:]:
        if (request.kind, request.name) != (first.kind, first.name):
            return (
                f"rank {first_rank} asks for {first.kind} '{first.name}', rank {rank} for {request.kind} "
                f"'{request.name}': all ranks must ask for the same in the same order"
            )
        for what, first_value, value in _facts(first, request):
            if first_value != value:
                difference = f"{what} is {first_value} on rank {first_rank} and {value} on rank {rank}"
                return f"{request.kind} '{request.name}': {difference}"
    return ""


def _facts(first: Request, request: Request) -> list[tuple[str, Any, Any]]:
    """Return what must be the same: its name and both values."""
    facts: list[tuple[str, Any, Any]] = [
        ("the operation", OPERATIONS[first.op], OPERATIONS[request.op]),
        ("the root rank", first.root, request.root),
        ("the number of tensors", len(first.shapes), len(request.shapes)),
    ]
    free = first.kind in _FREE_ROWS
    for (first_dtype, first_shape), (dtype, shape) in zip(first.shapes, request.shapes, strict=False):
        facts.append(("the type", first_dtype, dtype))
        facts.append(("the number of dimensions", len(first_shape), len(shape)))
        what = "the shape after the first dimension" if free else "the shape"
        facts.append((what, first_shape[free:], shape[free:]))
    return facts


def impossible(request: Request, ranks: Sequence[int]) -> str:
    """Return why nobody could do what a rank asks for, a sentence, or nothing."""
    kind = request.kind
    size = len(ranks)
    rows = [shape[0] if shape else None for _, shape in request.shapes]
    if kind in ("allgather", "alltoall", "reducescatter") and None in rows:
        return f"{kind} '{request.name}' of a scalar: give a tensor with rows"
    if kind == "broadcast" and request.root not in ranks:
        return f"broadcast '{request.name}': root rank {request.root} is not among ranks {list(ranks)}"
    if kind == "alltoall" and request.extra:
        if len(request.extra) != size or min(request.extra) < 0 or sum(request.extra) != rows[0]:
            splits = f"splits {list(request.extra)}"
            return f"alltoall '{request.name}': {splits} do not divide {rows[0]} rows over {size} ranks"
    elif kind == "alltoall" and (rows[0] or 0) % size:
        return f"alltoall '{request.name}': {rows[0]} rows cannot be divided over {size} ranks: give splits"
    return ""


class Timeline:
    """Exchanges as slices of the Trace Event Format, for a browser's tracing page or Perfetto; to be at `path`."""

    def __init__(self) -> None:
        self.path = ""
        self.events: list[dict[str, Any]] = []
        self._begin = 0.0

    def start(self, path: str) -> None:
        """Note what begins from now on."""
        self.path = path
        self.events = []
        self._begin = clock()

    def add(self, request: Request, begin: float, ready: float, end: float) -> None:
        """Note an exchange: waiting for the others from `begin` to `ready`, then the data; seconds."""
        self._slice(f"NEGOTIATE_{request.kind.upper()}", begin, ready, request.name)
        self._slice(request.kind, ready, end, request.name)

    def add_sums(self, times: npt.NDArray[np.float64]) -> None:
        """Note sums of the native operation, those entered since the start: [sums, 2], entry and exit in seconds."""
        if self.path:
            for entry, left in times[times[:, 0] >= self._begin].tolist():
                self._slice("allreduce", entry, left, "sums of a step")

    def _slice(self, name: str, begin: float, end: float, tensor: str) -> None:
        times = {"ts": round(1e6 * begin, 3), "dur": round(1e6 * (end - begin), 3)}
        self.events.append({"name": name, "ph": "X", "pid": 0, "tid": 0, **times, "args": {"tensor": tensor}})

    def stop(self) -> None:
        """Write the file, where there is one."""
        if self.path:
            Path(self.path).write_text(json.dumps({"traceEvents": self.events}))
        self.path = ""


timeline = Timeline()


class Exchange:
    """The exchanges of `ranks` by `comm`, which has as many."""

    def __init__(self, comm: "MPI.Intracomm", ranks: Sequence[int], watch: "HangWatch", timeline: Timeline) -> None:
        self._watch = watch
        self._timeline = timeline
        self.change(comm, ranks)

    def change(self, comm: "MPI.Intracomm", ranks: Sequence[int]) -> None:
        """Exchange among `ranks` by `comm`, which has as many, from now on."""
        self.comm = comm
        self.ranks = list(ranks)
        self._own = comm.Get_rank()
        self._joined: list[int] = []

    def run(
        self, request: Request, arrays: Sequence[Array] = (), scales: Scales = (1.0, 1.0), value: Any = None
    ) -> list[Any]:
        """Make an exchange of `arrays`, or of the object `value`, and return what this rank gets of it.

        Raises:
            tf.errors.FailedPreconditionError: the ranks ask for things that do not fit each other, on all of them.
            tf.errors.InvalidArgumentError: some rank asks for what cannot be done, on all of them.
        """
        shapes = tuple((str(array.dtype), array.shape) for array in arrays)
        request = request._replace(shapes=shapes)
        with self._watch.inside(f"{request.kind} '{request.name}'", sum(array.nbytes for array in arrays)):
            begin = clock()
            requests = self._agree(request)
            ready = clock()
            refused = next(filter(None, (impossible(asked, self.ranks) for asked in requests)), "")
            if refused:
                raise tf.errors.InvalidArgumentError(None, None, refused)
            result = self._do(request, requests, arrays, scales, value)
            end = clock()
            if calls is not None:
                calls.append((begin, end))
            if self._timeline.path:
                self._timeline.add(request, begin, ready, end)
        return result

    def join(self) -> int:
        """Take part with zeros until all ranks have joined; return the last of them."""
        while True:
            with self._watch.inside("join", 0):
                requests = self._agree(Request(_JOIN, ""))
            asked = next((request for request in requests if request.kind != _JOIN), None)
            if asked is None:
                last = self._joined[-1]
                self._joined = []
                return last
            zeros = [np.zeros(shape, tf.as_dtype(dtype).as_numpy_dtype) for dtype, shape in asked.shapes]
            self._do(asked, requests, zeros, (1.0, 1.0), None)

    def _agree(self, request: Request) -> list[Request]:
        """Return what every rank asks for, which fits.

        The usual case, that all ask for the same, is known from short digests, without objects that travel.
        """
        digests = np.empty((len(self.ranks), _DIGEST_BYTES), np.uint8)
        own_digest = hashlib.blake2b(repr(request).encode(), digest_size=_DIGEST_BYTES).digest()
        self.comm.Allgather(np.frombuffer(own_digest, np.uint8), digests)
        if request.kind != _JOIN and (digests == digests[0]).all():
            return [request] * len(self.ranks)
        requests: list[Request] = self.comm.allgather(request)
        if wrong := disagreement(requests, self.ranks):
            raise tf.errors.FailedPreconditionError(None, None, wrong)
        joined = [rank for rank, asked in zip(self.ranks, requests, strict=True) if asked.kind == _JOIN]
        self._joined += [rank for rank in joined if rank not in self._joined]
        return requests

    def _do(
        self, request: Request, requests: Sequence[Request], arrays: Sequence[Array], scales: Scales, value: Any
    ) -> list[Any]:
        match request.kind:
            case "allreduce":
                return [self._reduced(array, request.op, scales) for array in arrays]
            case "reducescatter":
                totals = [self._reduced(array, request.op, scales) for array in arrays]
                return [np.array_split(total, len(self.ranks))[self._own] for total in totals]
            case "allgather":
                return [self._gathered(array, _rows_of(requests, place)) for place, array in enumerate(arrays)]
            case "broadcast":
                return [self._cast(array, self.ranks.index(request.root)) for array in arrays]
            case "alltoall":
                return self._scattered(arrays[0], list(map(self._splits_of, requests)))
            case "object":
                return [self.comm.bcast(value, root=self.ranks.index(request.root))]
            case "objects":
                return list(self.comm.allgather(value))
        return []

    def _splits_of(self, request: Request) -> Sequence[int]:
        """Return how many rows a rank sends to each in an alltoall: as it says, else equally many."""
        size = len(self.ranks)
        return request.extra or [request.shapes[0][1][0] // size] * size

    def _reduced(self, array: Array, op: int, scales: Scales) -> Array:
        before, after = scales
        kind = array.dtype.kind
        wide = np.dtype(np.uint8) if kind == "b" else array.dtype
        if array.dtype.itemsize == 2 and kind not in "iu":
            wide = np.dtype(np.float32)  # MPI knows no 16-bit floats
        elif array.dtype.itemsize <= 2 and kind in "iu":
            wide = np.dtype(np.int32)  # some of Open MPI's sums end at 127, as its vector instructions do
        values = np.ascontiguousarray(_scaled(array.astype(wide, copy=False), before)).reshape(-1)
        if op == ADASUM:
            total = _adasum(self.comm.allgather(values))
        else:
            total = np.empty_like(values)
            self.comm.Allreduce(values, total, op=_operation(op, kind))
        if op == AVERAGE:
            after /= len(self.ranks)
        return _scaled(total, after).astype(array.dtype, copy=False).reshape(array.shape)

    def _gathered(self, array: Array, rows: Sequence[int]) -> Array:
        result = np.empty((sum(rows), *array.shape[1:]), array.dtype)
        width = int(np.prod(array.shape[1:])) * array.itemsize
        self.comm.Allgatherv(_bytes(array), [_bytes(result), [count * width for count in rows]])
        return result

    def _cast(self, array: Array, root: int) -> Array:
        result = np.array(array, order="C")
        self.comm.Bcast(_bytes(result), root=root)
        return result

    def _scattered(self, array: Array, splits: Sequence[Sequence[int]]) -> list[Array]:
        width = int(np.prod(array.shape[1:])) * array.itemsize
        received_rows = [rank_splits[self._own] for rank_splits in splits]
        result = np.empty((sum(received_rows), *array.shape[1:]), array.dtype)
        sent_bytes = [count * width for count in splits[self._own]]
        received_bytes = [count * width for count in received_rows]
        self.comm.Alltoallv([_bytes(array), sent_bytes], [_bytes(result), received_bytes])
        return [result, np.array(received_rows, np.int32)]


def _rows_of(requests: Sequence[Request], place: int) -> list[int]:
    """Return every rank's number of rows of the tensor in this place."""
    return [request.shapes[place][1][0] for request in requests]


def _bytes(array: Array) -> Array:
    """Return the contiguous `array`, or a copy that is, as bytes: of any type."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _operation(op: int, kind: str) -> "MPI.Op":
    from mpi4py import MPI

    if kind == "b":  # as 0 and 1: any, or all
        return MPI.MIN if op in (MIN, PRODUCT) else MPI.MAX
    return {MIN: MPI.MIN, MAX: MPI.MAX, PRODUCT: MPI.PROD}.get(op, MPI.SUM)


def _scaled(values: Array, factor: float) -> Array:
    if factor == 1.0:
        return values
    if values.dtype.kind in "iu":
        return np.asarray(values.astype(np.float64) * factor).astype(values.dtype)
    return np.asarray(values * values.dtype.type(factor))


def _adasum(vectors: Sequence[Array]) -> Array:
    """Return the adaptive sum of as many vectors as a power of two, pair by pair (Maleki et al. 2021, "Scaling
    distributed training with adaptive summation")."""
    if len(vectors) == 1:
        return np.array(vectors[0])
    half = len(vectors) // 2
    first, second = (_adasum(part).astype(np.float64) for part in (vectors[:half], vectors[half:]))
    dot = float(first @ second)
    first_square = float(first @ first)
    second_square = float(second @ second)
    first_factor = 1 - (dot / (2 * first_square) if first_square else 0)
    second_factor = 1 - (dot / (2 * second_square) if second_square else 0)
    total = first_factor * first + second_factor * second
    return np.asarray(total).astype(vectors[0].dtype)
