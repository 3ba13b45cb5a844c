"""One exchange among all ranks, made from Python: what they ask for is compared first, then it is done.

Ranks meet in exchanges in the order in which each asks for them. A header goes before the data: kind, name, operation,
root, shapes and types. From the same headers every rank comes to the same conclusion, so that all raise or none.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.base.turns import clock

if TYPE_CHECKING:
    from mpi4py import MPI

    from harness.comm.hang import HangWatch

Array = npt.NDArray[Any]
AVERAGE, SUM, MIN, MAX, PRODUCT = range(5)
OPERATIONS = ("Average", "Sum", "Min", "Max", "Product")


class Request(NamedTuple):
    """What one rank asks for: `shapes` are (dtype, shape) of its tensors."""

    kind: str
    name: str
    op: int = SUM
    root: int = 0
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()


calls: list[tuple[float, float]] | None = None
"""Begin and end of every exchange, by `harness.base.turns.clock`; None where nobody asks."""
_DIGEST_BYTES = 16


def disagreement(requests: Sequence[Request]) -> str:
    """Return how the `requests`, by rank, do not fit each other, a sentence, or nothing."""
    first = requests[0]
    for rank, request in enumerate(requests):
        if (request.kind, request.name) != (first.kind, first.name):
            return (
                f"rank 0 asks for {first.kind} '{first.name}', rank {rank} for {request.kind} "
                f"'{request.name}': all ranks must ask for the same in the same order"
            )
        for what, first_value, value in _facts(first, request):
            if first_value != value:
                difference = f"{what} is {first_value} on rank 0 and {value} on rank {rank}"
                return f"{request.kind} '{request.name}': {difference}"
    return ""


def _facts(first: Request, request: Request) -> list[tuple[str, Any, Any]]:
    """Return what must be the same: its name and both values."""
    facts: list[tuple[str, Any, Any]] = [
        ("the operation", OPERATIONS[first.op], OPERATIONS[request.op]),
        ("the root rank", first.root, request.root),
        ("the number of tensors", len(first.shapes), len(request.shapes)),
    ]
    free = first.kind == "allgather"  # whose first dimensions may differ
    for (first_dtype, first_shape), (dtype, shape) in zip(first.shapes, request.shapes, strict=False):
        facts.append(("the type", first_dtype, dtype))
        facts.append(("the number of dimensions", len(first_shape), len(shape)))
        what = "the shape after the first dimension" if free else "the shape"
        facts.append((what, first_shape[free:], shape[free:]))
    return facts


def impossible(request: Request, size: int) -> str:
    """Return why none of `size` ranks could do what one asks for, a sentence, or nothing."""
    if request.kind == "allgather" and any(not shape for _, shape in request.shapes):
        return f"allgather '{request.name}' of a scalar: give a tensor with rows"
    if request.kind == "broadcast" and not 0 <= request.root < size:
        return f"broadcast '{request.name}': root rank {request.root} is not among {size} ranks"
    return ""


class Exchange:
    """The exchanges of the ranks of `comm`."""

    def __init__(self, comm: "MPI.Intracomm", watch: "HangWatch") -> None:
        self.comm = comm
        self.size = comm.Get_size()
        self._watch = watch

    def run(self, request: Request, arrays: Sequence[Array] = (), value: Any = None) -> list[Any]:
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
            refused = next(filter(None, (impossible(asked, self.size) for asked in requests)), "")
            if refused:
                import tensorflow as tf  # it is the script that imports it first, when it has set its variables

                raise tf.errors.InvalidArgumentError(None, None, refused)
            result = self._do(request, requests, arrays, value)
            if calls is not None:
                calls.append((begin, clock()))
        return result

    def _agree(self, request: Request) -> list[Request]:
        """Return what every rank asks for, which fits.

        The usual case, that all ask for the same, is known from short digests, without objects that travel.
        """
        digests = np.empty((self.size, _DIGEST_BYTES), np.uint8)
        own_digest = hashlib.blake2b(repr(request).encode(), digest_size=_DIGEST_BYTES).digest()
        self.comm.Allgather(np.frombuffer(own_digest, np.uint8), digests)
        if (digests == digests[0]).all():
            return [request] * self.size
        requests: list[Request] = self.comm.allgather(request)
        if wrong := disagreement(requests):
            import tensorflow as tf

            raise tf.errors.FailedPreconditionError(None, None, wrong)
        return requests

    def _do(self, request: Request, requests: Sequence[Request], arrays: Sequence[Array], value: Any) -> list[Any]:
        match request.kind:
            case "allreduce":
                return [self._reduced(array, request.op) for array in arrays]
            case "allgather":
                return [self._gathered(array, requests, place) for place, array in enumerate(arrays)]
            case "broadcast":
                return [self._cast(array, request.root) for array in arrays]
            case "object":
                return [self.comm.bcast(value, root=request.root)]
        return []

    def _reduced(self, array: Array, op: int) -> Array:
        kind = array.dtype.kind
        wide = np.dtype(np.uint8) if kind == "b" else array.dtype
        if array.dtype.itemsize == 2 and kind not in "iu":
            wide = np.dtype(np.float32)  # MPI knows no 16-bit floats
        elif array.dtype.itemsize <= 2 and kind in "iu":
            wide = np.dtype(np.int32)  # some of Open MPI's sums end at 127, as its vector instructions do
        values = np.ascontiguousarray(array.astype(wide, copy=False)).reshape(-1)
        total = np.empty_like(values)
        self.comm.Allreduce(values, total, op=mpi_operation(op, kind))
        if op == AVERAGE:
            total = np.asarray(total * (1 / self.size)).astype(wide)  # whole numbers are cut off
        return total.astype(array.dtype, copy=False).reshape(array.shape)

    def _gathered(self, array: Array, requests: Sequence[Request], place: int) -> Array:
        """Return the rows of all ranks' tensors in this `place`."""
        rows = [request.shapes[place][1][0] for request in requests]
        result = np.empty((sum(rows), *array.shape[1:]), array.dtype)
        width = int(np.prod(array.shape[1:])) * array.itemsize
        self.comm.Allgatherv(_bytes(array), [_bytes(result), [count * width for count in rows]])
        return result

    def _cast(self, array: Array, root: int) -> Array:
        result = np.array(array, order="C")
        self.comm.Bcast(_bytes(result), root=root)
        return result


def _bytes(array: Array) -> Array:
    """Return the contiguous `array`, or a copy that is, as bytes: of any type."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def mpi_operation(op: int, kind: str) -> "MPI.Op":
    """Return MPI's operation for one of `OPERATIONS` on arrays of a NumPy `kind`; `AVERAGE` is a sum, divided later."""
    from mpi4py import MPI

    if kind == "b":  # as 0 and 1: any, or all
        return MPI.MIN if op in (MIN, PRODUCT) else MPI.MAX
    return {MIN: MPI.MIN, MAX: MPI.MAX, PRODUCT: MPI.PROD}.get(op, MPI.SUM)
