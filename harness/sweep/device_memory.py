"""Whether devices hold the ranks of several launches at once: what is in use on each, before the first and with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.base.errors import UserError
from harness.base.processes import run_program
from harness.comm.gpus import visible_gpus

_QUERY = ("nvidia-smi", "--query-gpu=uuid,memory.used,memory.total", "--format=csv,noheader,nounits")
_LIMIT_S = 60
_MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """The bytes in use on a device, and those that it has."""

    used: int
    total: int


class Device(Protocol):
    """Devices of this host that several launches share."""

    def memory(self) -> Sequence[MemoryUse]:
        """Return what is in use now on each, in the same order every time."""


class Gpus:
    """The GPUs that this process may use. Of MIG instances the whole GPU's memory is known: they count as one."""

    def memory(self) -> Sequence[MemoryUse]:
        """Return each GPU's memory.

        Raises:
            UserError: the driver does not answer.
        """
        buses = {gpu.uuid for gpu in visible_gpus()}
        answer = run_program(_QUERY, limit_s=_LIMIT_S)
        if answer.code != 0:
            raise UserError(f"the driver does not say how much memory its GPUs have ({answer.last_error})")
        return parse_memory(answer.out, buses)


def parse_memory(text: str, uuids: set[str]) -> tuple[MemoryUse, ...]:
    """Return the memory of the GPUs with these `uuids` in nvidia-smi's answer, of all where it has none of them."""
    uses: dict[str, MemoryUse] = {}
    for line in filter(str.strip, text.splitlines()):
        uuid, used, total = map(str.strip, line.split(","))
        uses[uuid] = MemoryUse(used=int(used) * _MIB, total=int(total) * _MIB)
    chosen = tuple(use for uuid, use in uses.items() if uuid in uuids)
    return chosen or tuple(uses.values())


def holds(before: Sequence[MemoryUse], with_one: Sequence[MemoryUse], launches: int) -> bool:
    """Return whether each device holds `launches` as large as the first, which has taken what is between the two.

    The first has the fewest ranks and may be on one device alone: the most that it took there is taken for all.
    """
    taken = max((after.used - start.used for start, after in zip(before, with_one, strict=True)), default=0)
    return all(start.used + launches * taken <= start.total for start in before)
