"""Paper A's experiments as they ran here: which sweeps are of them, and what each policy measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness import datasets
from harness.analysis import units
from harness.analysis.accuracy_times import default_accuracy
from harness.analysis.confidence_intervals import FEWEST_LAUNCHES
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.side_by_side import Side, Sided, side_by_side
from harness.analysis.sweep_choice import choose_sweep
from harness.claims.paper_experiments import POLICIES
from harness.report.html_pages import PAGE, relative_link
from harness.schema.claim import EXPERIMENTS, Claim, Published
from harness.schema.presets import PRESETS
from harness.schema.record import RunRecord
from harness.schema.sweep import Study
from harness.schema.sync_policies import Gradients, Weights, known_policy

PAPER = "A"


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperStudy:
    """One experiment as it ran here: a sweep's folder for each policy, the paper's first, and what went wrong."""

    experiment: str
    folders: tuple[Path, ...]
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLine:
    """One policy of an experiment: how it is called, its layouts, and its sweep's report, empty where none is drawn."""

    sync: str
    sided: Sided
    link: str

    @property
    def top(self) -> Side | None:
        """The layout of the most ranks that has a speedup over fewer."""
        for side in reversed(self.sided.sides):
            if side.ranks > 1 and side.point and side.point.speedup is not None:
                return side
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperExperiment:
    """One experiment: what the paper says of it, what was `loaded` of it, a line for each policy, and what went wrong.

    `goal` is the test accuracy that times are taken to, None where none was tested. Where nothing ran there are no
    lines.
    """

    name: str
    claims: tuple[Claim, ...]
    problem: str
    loaded: tuple[Loaded, ...] = ()
    lines: tuple[PolicyLine, ...] = ()
    goal: float | None = None

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The launches of all policies."""
        return tuple(run for sweep in self.loaded for run in sweep.runs)


def find_studies(results: Path) -> tuple[PaperStudy, ...]:
    """Return those of paper A's experiments that have valid launches of its algorithm in `results`.

    Beside each the same under the other policies, where that ran.

    Raises:
        UserError: a study file is damaged.
    """
    studies = []
    for name in EXPERIMENTS:
        chosen = choose_sweep(results, partial(_is_of_paper, name))
        if chosen is None or chosen.loaded.study is None:
            continue
        sweep = chosen.loaded.study.sweep
        folders = [chosen.loaded.folder]
        for policy in POLICIES[1:]:
            folders.append(results / replace(sweep, workload=replace(sweep.workload, sync=policy)).name)
        studies.append(PaperStudy(experiment=name, folders=tuple(folders)))
    return tuple(studies)


def _is_of_paper(name: str, study: Study) -> bool:
    """Say whether a study is of the experiment called `name`, under the paper's own algorithm."""
    workload = study.sweep.workload
    return workload.name == name and workload.sync == POLICIES[0]


def read_experiments(studies: Sequence[PaperStudy], published: Published, target: Path) -> tuple[PaperExperiment, ...]:
    """Return what ran of each experiment, with its links for a page in the folder `target`."""
    experiments = []
    for study in studies:
        sweeps = [load_sweep(folder) for folder in study.folders if folder.is_dir()]
        loaded = [sweep for sweep in sweeps if sweep.runs]
        claims = published.of(PAPER, study.experiment)
        part = PaperExperiment(name=study.experiment, claims=claims, problem=study.problem)
        if loaded:
            part = _measured(part, loaded, target)
        elif not part.problem:
            part = replace(part, problem="no launch of it finished")
        experiments.append(part)
    return tuple(experiments)


def _measured(part: PaperExperiment, loaded: Sequence[Loaded], target: Path) -> PaperExperiment:
    frames = [(launch_frame(sweep.runs, sweep.epochs), sweep.epochs) for sweep in loaded]
    first = frames[0][0].assign(valid=True).sort_values("ranks", kind="stable")
    goal = default_accuracy(first, first["layout"].iloc[0])
    lines = []
    for sweep, sided in zip(loaded, side_by_side(frames, 2.0 if goal is None else goal, shared=True), strict=True):
        report = target.parent / sweep.folder.resolve().name / PAGE
        link = relative_link(report, target) if report.exists() else ""
        lines.append(PolicyLine(sync=_policy_words(sweep.runs[0].point.workload.sync), sided=sided, link=link))
    return replace(part, loaded=tuple(loaded), lines=tuple(lines), goal=goal)


def _policy_words(sync: str) -> str:
    policy = known_policy(sync)
    if isinstance(policy, Gradients):
        return "gradients each step"
    if isinstance(policy, Weights):
        return f"weights every {policy.period} steps" if policy.period else "weights each epoch"
    return sync


def printed_speedups(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Return the speedups that the paper prints and that can be right."""
    return tuple(claim for claim in claims if claim.quantity == "speedup" and claim.value and not claim.erratum)


def cuts(part: PaperExperiment) -> tuple[str, ...]:
    """Return what every number of an experiment is of: its rows and epochs, and of how many; its launches."""
    run = part.runs[0]
    workload = run.point.workload
    data = run.data
    usual = int(PRESETS.get(workload.preset, {}).get("epochs", workload.epochs))
    epochs = f"the preset's {usual}" if workload.epochs == usual else f"{workload.epochs} of the preset's {usual}"
    rows = sum(rank.rows for rank in run.ranks)
    kind = "rows" if data.kind == "real" else "synthetic rows"
    sides = [side for line in part.lines for side in line.sided.sides]
    launches = [side.launches for side in sides]
    least = min(launches)
    most = max(launches)
    interval = f"too few for an interval, which needs {FEWEST_LAUNCHES}: no number has one"
    if any(side.point and side.point.blocks for side in sides):
        interval = "in turns; small print and bars of speedups: 95 % intervals over the blocks"
    elif most >= FEWEST_LAUNCHES:
        interval = "small print and bars: 95 % intervals, a time's of its session only" + (
            f" where there are {FEWEST_LAUNCHES}" if least < FEWEST_LAUNCHES else ""
        )
    all_rows = datasets.dataset_info(workload.dataset).train_rows
    return (
        f"{units.count(rows)} {kind} of the data set's {units.count(all_rows)}",
        f"{epochs} epochs",
        f"tested on {units.count(data.test_rows)} rows{' held out of them' if data.held_out else ''}",
        f"{units.span(least, most)} {'launch' if most == 1 else 'launches'} of each layout, {interval}",
    )
