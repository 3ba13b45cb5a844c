"""What a probe measures: message sizes, settings of the MPI library, and each operation at each level."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.base.processes import quiet_stderr
from harness.comm.placement import observe
from harness.schema.claim import EXPERIMENTS
from harness.schema.message_cost import ALL, ALLREDUCE, BROADCAST, NETWORK, NODE, POINT_TO_POINT, REDUCTION, Setting

if TYPE_CHECKING:
    from mpi4py import MPI

    from harness.comm.native.operation import Sum
    from harness.comm.world import World


SMALLEST, LARGEST = 8, 64 * 2**20
DEFAULT = Setting(name="default", mca={})

# Open MPI's numbers of the algorithms in its component `tuned` (ompi_info --param coll tuned --level 9).
_ALGORITHMS = {
    1: "basic linear",
    2: "reduce and broadcast",
    3: "recursive doubling",
    4: "ring",
    5: "segmented ring",
    6: "Rabenseifner",
}


def message_sizes(largest: int = LARGEST) -> tuple[int, ...]:
    """Return doublings from 8 bytes to `largest`, and the sizes of the papers' networks among them.

    Raises:
        UserError: `largest` is too small for a line.
    """
    if largest < 1024:
        raise UserError(f"LARGEST={largest} is too small: use at least 1024 bytes")
    doublings = {SMALLEST << power for power in range(64) if SMALLEST << power <= largest}
    return tuple(
        sorted(doublings | {one.weights_bytes for one in EXPERIMENTS.values() if one.weights_bytes <= largest})
    )


def algorithm_settings() -> tuple[Setting, ...]:
    """Return one setting for each allreduce algorithm and component of Open MPI that can be chosen by name."""
    tuned = {"coll": "^han,adapt", "coll_tuned_use_dynamic_rules": "1"}
    algorithms = tuple(
        Setting(name=f"tuned, {name}", mca=tuned | {"coll_tuned_allreduce_algorithm": str(number)})
        for number, name in _ALGORITHMS.items()
    )
    return (
        Setting(name="tuned, own choice", mca={"coll": "^han,adapt"}),
        *algorithms,
        Setting(name="han", mca={"coll_han_priority": "100"}),
        Setting(name="sm", mca={"coll_sm_priority": "100"}),
    )


def parse_settings(texts: Sequence[str]) -> tuple[Setting, ...]:
    """Parse settings as users write them: ``pml=ob1 btl=self,sm``, one or more parameters each.

    Raises:
        UserError: a word is no NAME=VALUE.
    """
    settings = []
    for text in texts:
        words = [word.partition("=") for word in text.split()]
        if not words or not all(name and sign and value for name, sign, value in words):
            raise UserError(f"--mca '{text}' is no setting: write NAME=VALUE, several of them with blanks between")
        settings.append(Setting(name=" ".join(text.split()), mca={name: value for name, _, value in words}))
    return tuple(settings)


_LARGEST_REDUCTION = 2**25  # bytes: above every network of the papers; two buffers of it are shared memory

Call = Callable[[int], None]
Buffer = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """One operation at one level. `call` makes it once with that many bytes; None on a rank that only waits.

    `messages` is 2 for a round trip: the time of one message is half of it.
    """

    operation: str
    level: str
    ranks: int
    largest: int
    call: Call | None
    messages: int = 1


def benches(
    world: "World", *, largest: int, reductions: tuple[str, ...], stack: ExitStack
) -> tuple[list[Bench], list[str]]:
    """Return what this world can measure, in the same order on every rank, and notes on what it cannot.

    `largest` is the bytes of the largest message. What must be freed on all ranks is left on `stack`.
    """
    hosts = world.comm.allgather(observe().host)
    buffer = np.zeros(-(-largest // 4), np.float32)  # zeros: sums of sums stay finite
    first = hosts.index(hosts[world.rank])
    node = world.comm.Split(first, world.rank)
    stack.callback(node.Free)
    leaders = world.comm.Split(int(world.rank != first), world.rank)
    stack.callback(leaders.Free)
    several, crowded = len(set(hosts)) > 1, len(set(hosts)) < world.size
    found: list[Bench] = []
    beside = next((rank for rank in range(1, world.size) if hosts[rank] == hosts[0]), None)
    if beside is not None:
        found.append(_point_to_point(world, NODE, beside, buffer))
        found += _collectives(node, NODE, hosts.count(hosts[0]), buffer, takes_part=True)
    if several:
        away = next(rank for rank in range(1, world.size) if hosts[rank] != hosts[0])
        found.append(_point_to_point(world, NETWORK, away, buffer))
        found += _collectives(leaders, NETWORK, len(set(hosts)), buffer, takes_part=world.rank == first)
    if several and crowded:
        found += _collectives(world.comm, ALL, world.size, buffer, takes_part=True)
    level = (ALL if crowded else NETWORK) if several else NODE
    own, notes = _own_reductions(world, reductions, level, buffer[: _LARGEST_REDUCTION // 4], stack)
    return found + own, notes


def _point_to_point(world: "World", level: str, partner: int, buffer: Buffer) -> Bench:
    comm, message = world.comm, buffer.view(np.uint8)

    def there_and_back(count: int) -> None:
        comm.Send(message[:count], dest=partner)
        comm.Recv(message[:count], source=partner)

    def back(count: int) -> None:
        comm.Recv(message[:count], source=0)
        comm.Send(message[:count], dest=0)

    call = {0: there_and_back, partner: back}.get(world.rank)
    return Bench(operation=POINT_TO_POINT, level=level, ranks=2, largest=buffer.nbytes, call=call, messages=2)


def _collectives(comm: "MPI.Comm", level: str, ranks: int, buffer: Buffer, *, takes_part: bool) -> Iterator[Bench]:
    from mpi4py import MPI

    message = buffer.view(np.uint8)

    def broadcast(count: int) -> None:
        comm.Bcast(message[:count], root=0)

    def allreduce(count: int) -> None:
        comm.Allreduce(MPI.IN_PLACE, buffer[: count // 4])

    for name, call in ((BROADCAST, broadcast), (ALLREDUCE, allreduce)):
        part = call if takes_part else None
        yield Bench(operation=name, level=level, ranks=ranks, largest=buffer.nbytes, call=part)


def _own_reductions(
    world: "World", names: tuple[str, ...], level: str, buffer: Buffer, stack: ExitStack
) -> tuple[list[Bench], list[str]]:
    """Return the harness's own reductions, or the reason why there are none."""
    from harness.comm.autotune import build_native

    if not names:
        return [], []
    with quiet_stderr():  # TensorFlow is imported
        library, failure = build_native()
    failures = [reason for reason in world.comm.allgather(failure) if reason]
    if library is None or failures:
        return [], [f"the harness's own reductions were not measured: {failures[0]}"]
    from harness.comm.native.operation import direct_sum

    found: list[Bench] = []
    address = buffer.ctypes.data
    for name in names:
        way, total = stack.enter_context(direct_sum(world.comm, library, largest=buffer.nbytes, way=name))
        if way != name:
            continue  # these hosts cannot take this way

        def call(count: int, total: "Sum" = total) -> None:
            total(address, [count // 4])

        found.append(
            Bench(operation=f"{REDUCTION}{name}", level=level, ranks=world.size, largest=buffer.nbytes, call=call)
        )
    return found, []
