"""Measurement: what one state of the code took on one machine; Prediction and Advice: what is expected to be taken."""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from harness.base.provenance import Machine
from harness.schema.layout import Layout
from harness.schema.record import Versions
from harness.schema.workload import Workload, is_script

ADVICE = "advice"  # results/<sweep>/advice/<layout and length>.json


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One layout of one sweep for a job of `epochs`, or until `target` test accuracy.

    `seconds` of the whole job from the start of its processes, `low` and `high` the ends of the 95 % interval for one
    launch. `measured`: from launches on this layout, else from growth models. `asked` is the limit in words.
    """

    schema: int
    made: datetime
    asked: str
    layout: Layout
    epochs: int
    target: float | None
    measured: bool
    seconds: float
    low: float
    high: float

    @property
    def file(self) -> str:
        """The name of its file: the same for the same question about the same layout."""
        layout = self.layout
        length = f"e{self.epochs}" if self.target is None else f"a{self.target:g}"
        return f"n{layout.nodes}x{layout.ranks_per_node}x{layout.threads}-{length}.json"


PREDICTION_FILE = "prediction.json"  # results/<sweep>/prediction.json


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedPoint:
    """One rank count. Seconds of a step, in three parts, and of an epoch, with its low and high end.

    `straggler_s` is the wait for the slowest rank, `allreduce_s` the synchronisation's share of a step.
    """

    ranks: int
    steps: int
    compute_s: float
    straggler_s: float
    allreduce_s: float
    step_s: float
    epoch_s: float
    epoch_low_s: float
    epoch_high_s: float
    speedup: float
    efficiency: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Predicted points of one workload, and all that they rest on.

    `base` says which measurement gave the computation, `network` which link costs were used; `assumptions` are
    sentences. `speedup` of the points is over `base_ranks` ranks. `growth` has what growth models of the parts say,
    where enough rank counts were measured.
    """

    schema: int
    made: datetime
    workload: Workload
    scaling: str
    algorithm: str
    base_ranks: int
    base: str
    network: str
    assumptions: tuple[str, ...]
    points: tuple[PredictedPoint, ...]
    growth: tuple[PredictedPoint, ...] = ()


BASELINE_SCHEMA = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Software(Versions):
    """The code that ran. `code` is `Point.code`: it, and no commit, tells whether two launches ran the same."""

    code: str

    @property
    def state(self) -> str:
        """The same for launches of the same code and versions, whatever their commits."""
        return self.code or msgspec.json.encode(self).decode()


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLaunch:
    """One valid launch in numbers; times in seconds of one epoch, medians over the launch's epochs.

    `seconds` is the maximum over ranks. `skew_seconds` (waiting for the slowest rank) and `wire_seconds`
    (the allreduce itself) are means over ranks. `test_accuracy` is of the last epoch, None where it was not
    evaluated. `rows` is what one epoch visits over all ranks.
    """

    layout: Layout
    repeat: int
    started: datetime
    ended: datetime
    rows: int
    seconds: float
    skew_seconds: float
    wire_seconds: float
    test_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The valid launches of one workload, of one state of the code, on one machine, in order of their start.

    `data_id` and `scaling` are those of `Point`. `label` is how a reader names it. `excluded` counts the
    launches of this state that were not valid, `met` the valid ones that trained in turns beside other work.
    """

    label: str
    workload: Workload
    scaling: str
    data_id: str
    data_kind: str
    machine: Machine
    software: Software
    reductions: tuple[str, ...]
    launches: tuple[MeasuredLaunch, ...]
    excluded: int = 0
    met: int = 0

    @property
    def state(self) -> str:
        """The state of the code as people write it: the harness's commit in twelve digits.

        After a plus sign come digits of `Software.code` where the commit does not name all that ran: files differed
        from it, or a script or MODEL of the user's own ran.
        """
        code, commit = self.software.code[:6], self.software.commit[:12] or "no commit"
        own = is_script(self.workload) or self.workload.own_modules
        return f"{commit}+{code}" if self.software.dirty or (own and code) else commit

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts that were launched, fewest ranks first."""
        found = {launch.layout for launch in self.launches}
        return tuple(sorted(found, key=lambda layout: (layout.ranks, layout.nodes, layout.threads, str(layout))))

    def of(self, layout: Layout) -> tuple[MeasuredLaunch, ...]:
        """Return the launches of `layout` in order of their start."""
        return tuple(launch for launch in self.launches if launch.layout == layout)

    @property
    def newest(self) -> datetime:
        """When the last launch started."""
        return max(launch.started for launch in self.launches)


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """A measurement that was kept under a name: ``results/baselines/<name>.json``."""

    schema: int
    name: str
    saved: datetime
    note: str
    measurement: Measurement
