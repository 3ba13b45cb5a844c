"""What all contenders are asked to train (`Task`), and the record of a bench (``bench.json``)."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from harness.base.provenance import Machine
from harness.schema.record import decode
from harness.schema.workload import Workload

RECORD = "bench.json"  # reports/bench/bench.json
BATCH_PER_RANK = 64
LEARNING_RATE = 0.1
SCHEMA = 2
_WITHOUT_END = 100_000  # epochs: the end of the block ends them


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A network and its data, for plain SGD on one thread per rank.

    `rows` are synthetic training rows over all ranks; every rank trains on an equal part of them, again and again until
    its block ends.
    """

    dataset: str
    model: str
    rows: int
    batch_per_rank: int = BATCH_PER_RANK
    learning_rate: float = LEARNING_RATE
    seed: int = 0

    @property
    def name(self) -> str:
        """The workload's name, ``mnist-dnn``."""
        return f"{self.dataset}-{self.model}"

    def workload(self, sync: str = "gradients") -> Workload:
        """Return the harness's own description of this task, by the policy `sync`: whole batches of synthetic rows."""
        return Workload(
            dataset=self.dataset, model=self.model, batch_per_rank=self.batch_per_rank, drop_remainder=True,
            epochs=_WITHOUT_END, samples=self.rows, seed=self.seed, data="synthetic", optimizer="sgd",
            learning_rate=self.learning_rate, sync=sync,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchBlock:
    """One block of a workload: its contenders were started together and trained in turns.

    `steps` are the seconds of a step in every round, by contender, of the slowest rank; None where its turn was
    disturbed or there was none. `core_ns` are those of a ping-pong between the two ranks' cores in every round, 0 where
    no contender measured it (see `comm.grouped_sums.core_distance`). `losses` are the mean training losses of the
    first epoch of those that came to its end. `failed` says why a contender has no rounds; `details` are facts for the
    page.
    """

    workload: str
    number: int
    started: datetime
    wall_s: float
    steps: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    core_ns: tuple[float, ...] = ()
    losses: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRecord:
    """A whole bench: where, with what, and every block in the order they were made.

    `rows` are those of an epoch by workload. `left_out` says why contenders take no part. `forced` measured on a busy
    machine too, `quick` in too few blocks: no verdict is based on either.
    """

    schema: int
    started: datetime
    machine: Machine
    versions: dict[str, str]
    commit: str
    dirty: bool
    rows: dict[str, int]
    contenders: tuple[str, ...]
    left_out: dict[str, str]
    seed: int
    forced: bool
    quick: bool
    blocks: tuple[BenchBlock, ...] = ()


def read_bench(path: Path) -> BenchRecord:
    """Read the record of a bench.

    Raises:
        UserError: it is damaged, or of launches one after the other, as they were made before there were turns.
    """
    return decode(path.read_bytes(), BenchRecord, path)
