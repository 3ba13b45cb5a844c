"""Sweep: one workload over several layouts; Study: what was asked of it last."""

from dataclasses import dataclass, replace

from harness.base.errors import UserError, unknown
from harness.base.record_words import TEXT, check_text
from harness.base.setting_names import setting
from harness.schema.layout import Layout
from harness.schema.point import SCALINGS, Point, check_settings, digest
from harness.schema.workload import Workload

USUAL_WIDTH = 0.02
"""Half the width of a speedup's 95 % CI, of its logarithm, at which a sweep ends that asks for no other."""
USUAL_MINUTES = 6.0
"""How long a sweep goes on that has no other limit."""
_MOST_LAUNCHES = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """One workload, several layouts, `repeats` launches of each, strong or weak scaling.

    Under weak scaling `workload.samples` is the number of rows per rank. `settings` and `code` as in `Point`; the
    name has no `code`, so that launches of all states of the code lie in one folder, and has what places launches on
    other hardware: the `scheduler`, and GPUs.

    Raises:
        UserError: the scaling is unknown, a count is below 1, weak scaling lacks its rows per rank, or a text is of no
            form that a record has.
    """

    workload: Workload
    layouts: tuple[Layout, ...]
    repeats: int = 3
    scaling: str = "strong"
    data_id: str = ""
    oversubscribe: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    code: str = ""
    scheduler: str = "local"

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise unknown("scaling", self.scaling, SCALINGS)
        check_text("scheduler", self.scheduler)
        check_text("data id", self.data_id, TEXT, optional=True)
        check_text("code", self.code, optional=True)
        check_settings(self.settings)
        if self.repeats < 1:
            raise UserError(f"{setting('repeats', self.repeats)} is too small: use at least 1")
        launches = self.repeats * len(self.layouts)
        if launches > _MOST_LAUNCHES:
            raise UserError(
                f"{setting('repeats', self.repeats)} makes {launches:,} launches: ask for at most {_MOST_LAUNCHES:,}"
            )
        if self.scaling == "weak" and self.workload.samples is None and self.workload.script is None:
            raise UserError(
                f"{setting('scaling', 'weak')} needs {setting('samples')}, the rows per rank, so that work per rank "
                "stays "
                "equal"
            )

    @property
    def name(self) -> str:
        """The folder of the study: the same for every command that adds layouts or repeats to it."""
        workload = self.workload
        identity = digest((self.workload, self.scaling, self.data_id, self.oversubscribe, *self.settings))
        places = (
            "gpus" if any(layout.gpus_per_rank for layout in self.layouts) else "",
            self.scheduler.replace("local", ""),
        )
        return "-".join(filter(None, (workload.name, workload.preset, self.scaling, *places, identity[:8])))

    def workload_of(self, layout: Layout) -> Workload:
        """Return what is trained on `layout`: under weak scaling rows in proportion to its ranks."""
        if self.scaling != "weak" or self.workload.samples is None:
            return self.workload
        return replace(self.workload, samples=self.workload.samples * layout.ranks)

    def points(self) -> tuple[Point, ...]:
        """Return every launch: layouts in order, repeats innermost."""
        return tuple(
            Point(
                workload=self.workload_of(layout),
                layout=layout,
                repeat=repeat,
                scaling=self.scaling,
                data_id=self.data_id,
                oversubscribe=self.oversubscribe,
                settings=self.settings,
                code=self.code,
            )
            for layout in self.layouts
            for repeat in range(self.repeats)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A layout that was asked for and not run, and the reason in one sentence."""

    layout: Layout
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """What the last command asked of this sweep, and the layouts it could not run here."""

    schema: int
    sweep: Sweep
    skipped: tuple[Skipped, ...]
