"""The artifact description and evaluation appendix, in the parts of the SC conference's form, filled from records."""

import platform
import shlex
from collections.abc import Iterable, Sequence
from itertools import chain

from harness.analysis import numbers
from harness.analysis.frames import launch_frame
from harness.analysis.scaling import scale
from harness.bundle.experiment import SMOKE_MINUTES, BundledSweep, smoke
from harness.bundle.source import Code
from harness.claims.finding import CONFIRMED
from harness.claims.verdict import Judgement
from harness.claims.wording import published
from harness.report.answer import Fact
from harness.report.document import Block, Grid, Heading, Items, ShellLines
from harness.report.launch_summary import account_facts, on_one_machine
from harness.report.sweep_facts import data_facts, machine_facts, workload_facts
from harness.reproduction.verdicts import LOSS_BOUND
from harness.sweep.eta import layout_words

REBUILD = "harness report --from {}"
OFFLINE = " --no-index --find-links wheels"
CLAIMS = "harness claims --results results"


def appendix(
    name: str, experiments: Sequence[BundledSweep], judgements: Sequence[Judgement], code: Code
) -> list[Block]:
    """Return the appendix of the bundle `name` (its file), which has `code` in it."""
    return [
        Heading(level=1, text=f"Artifact description and evaluation: {name}"),
        "Every number below was taken from the records in this bundle; nothing was filled in by hand.",
        *_overview(experiments, code),
        *chain.from_iterable(_identify(number, one, name) for number, one in enumerate(experiments, 1)),
        *_evaluation(name, experiments, code),
        *_claims(judgements),
    ]


def _overview(experiments: Sequence[BundledSweep], code: Code) -> list[Block]:
    return [
        Heading(level=2, text="Artifact description: contributions and artifacts"),
        Grid(
            headings=("Contribution", "What was found", "Artifact", "Command that shows it"),
            rows=[(f"C{n}", one.answer, f"A{n}: {one.name}", _report(one)) for n, one in enumerate(experiments, 1)],
            widths=(0.16, 0.38, 0.23, 0.23),
        ),
        "Time in minutes, measured. Set-up is of the software, once for all; execution is from the first launch's "
        "start to the last one's end without pauses; of it, starting is what launches spent before training.",
        Grid(
            headings=("Artifact", "Set-up", "Execution", "of it starting", "Analysis", "Launches"),
            rows=[
                (
                    f"A{n}", _setup(code), *map(_minutes, (one.minutes.execution, one.minutes.starting)),
                    _minutes(one.minutes.analysis), numbers.count(len(one.loaded.runs)),
                )
                for n, one in enumerate(experiments, 1)
            ],
        ),
        "The source of the harness, in the folder source:",
        Items(texts=code.said),
    ]  # fmt: skip


def _setup(code: Code) -> str:
    return "not measured" if code.setup_s is None else _minutes(code.setup_s / 60)


def _minutes(value: float) -> str:
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def _report(one: BundledSweep) -> str:
    return shlex.join(["harness", "report", one.name])


def _identify(number: int, one: BundledSweep, bundle: str) -> list[Block]:
    runs, launches = one.runs, launch_frame(one.loaded.runs, one.loaded.epochs)
    found: list[Block] = [
        Heading(level=2, text=f"Artifact A{number}: {one.title}"),
        Heading(level=3, text="Relation to contributions"),
        f"A{number} is the sweep {one.name}: {numbers.plural(len(one.loaded.runs), 'launch')}, "
        f"{len(one.loaded.valid)} of them with valid times. It shows C{number}: {one.answer}",
        Heading(level=3, text="Expected results"),
        _results(one),
        Heading(level=3, text="Set-up: hardware and software"),
        _facts((*machine_facts(runs), *account_facts(one.loaded.accounts))),
        Heading(level=3, text="Set-up: data and training"),
        _facts((*data_facts(runs, launches), *workload_facts(runs[0].point.workload, runs))),
        Heading(level=3, text="Execution"),
        f"It took {_minutes(one.minutes.execution)} minutes on the machine above.",
        ShellLines(lines=one.command.splitlines()),
        Heading(level=3, text="Analysis"),
    ]
    if one.figures:
        again = REBUILD.format(bundle)
        rows = [(f"{figure.name}.svg", figure.title, again) for figure in one.figures]
        found.append(Grid(headings=("Figure (also .pdf, .png, .csv)", "Shows", "Command that makes it"), rows=rows))
    else:
        found.append(f"No launch is valid, so there is no figure; `{_report(one)}` draws the page that says why.")
    if one.limits:
        found += [Heading(level=3, text="What it does not show"), Items(texts=one.limits)]
    return found


def _facts(facts: Iterable[Fact]) -> Grid:
    return Grid(headings=("What", "Recorded"), rows=[(one.name, one.value) for one in facts], widths=(0.25, 0.75))


def _results(one: BundledSweep) -> Block:
    launches = launch_frame(one.loaded.runs, one.loaded.epochs)
    scaling = scale(launches)
    if scaling is None:
        return "None: no launch has valid times. What the launches trained, and why they are not valid, is recorded."
    alone = on_one_machine(one.loaded.runs)
    accuracy = launches[launches["valid"]].groupby("layout")["test_accuracy"].median()
    names = {str(run.point.layout): run.point.layout for run in one.loaded.runs}
    rows = []
    for point in scaling.points:
        reached = accuracy.get(point.layout)
        speedup = "not comparable" if point.speedup is None else f"{point.speedup:.2f}"
        span = f" ({numbers.ratio_span(point.speedup_interval)})" if point.speedup_interval else ""
        where = layout_words(names[point.layout]) + (" of one machine" if alone else "")
        tested = "not tested" if reached is None or reached != reached else numbers.percent(float(reached), 2)
        rows.append((where, str(point.launches), numbers.seconds(point.seconds), speedup + span, tested))
    headings = ("Layout", "Launches", "Epoch, median", "Speedup (95 % interval)", "Test accuracy, median")
    return Grid(headings=headings, rows=rows)


def _evaluation(name: str, experiments: Sequence[BundledSweep], code: Code) -> list[Block]:
    chosen, total = smoke(experiments)
    left = [one.name for one in experiments if one not in chosen]
    full = sum(one.minutes.execution + one.minutes.analysis for one in experiments)
    found: list[Block] = [
        Heading(level=2, text="Artifact evaluation"),
        Heading(level=3, text="Set-up"),
        _needs(code),
        ShellLines(
            lines=(
                f"tar xzf {name} && cd {name.removesuffix('.tar.gz')}",
                "python3 -m venv .venv && . .venv/bin/activate",
                "pip install --no-deps --require-hashes -r requirements.lock" + (OFFLINE if code.wheels else ""),
                *code.commands,
            )
        ),
        Heading(level=3, text=f"Smoke variant: {_minutes(total)} minutes, at most {SMOKE_MINUTES:.0f}"),
        "Checks the bundle, draws every figure again and holds it against the bundle's byte for byte, and repeats the "
        f"shortest launch of {numbers.plural(len(chosen), 'sweep')}. The minutes are those of figures and launches as "
        "recorded; the first launch of a new environment also compiles.",
        ShellLines(lines=(f"sh smoke.sh ../{name}",)),
    ]
    if left:
        found.append(f"Left out, because a single launch takes too long: {', '.join(left)}.")
    return [
        *found,
        Heading(level=3, text=f"Everything: {_minutes(full)} minutes"),
        "Launches every sweep again, into the folder again, and draws reports and claims from what that gives. Exit "
        "code 0: every launch has a record with valid times.",
        ShellLines(lines=("sh reproduce.sh",)),
        Heading(level=3, text="What to expect"),
        Items(
            texts=(
                "Weights: the same bit for bit where source, versions, MPI library, reduction and processor are those "
                "recorded, with one thread a rank and no GPU; else they are not compared.",
                f"Training loss: every epoch within {numbers.percent(LOSS_BOUND)} of the recorded one.",
                "Test accuracy: within the chance of so many test rows (binomial, 95 %).",
                "Epoch time: compared on the recorded machine only, within 95 % of repetitions.",
                "`harness reproduce` says each of these in a line with a verdict; exit code 0 means that all "
                "that could be compared is reproduced.",
            )
        ),
    ]


def _needs(code: Code) -> str:
    """Return what must be there before the set-up; wheels are of one Python and one kind of machine."""
    if not code.wheels:
        return "Python 3.11 or newer on Linux, a network for the third line."
    version = ".".join(platform.python_version_tuple()[:2])
    return f"Python {version} on {platform.system()} {platform.machine()}, which the wheels are for; no network."


def _claims(judgements: Sequence[Judgement]) -> list[Block]:
    """Return the published claims: first those that the records support, then those they do not."""
    good = [one for one in judgements if one.finding.outcome == CONFIRMED]
    rest = [one for one in judgements if one.finding.outcome != CONFIRMED]
    supported: Block = "None of the papers' claims is confirmed by these records."
    if good:
        headings = ("Claim", "Published", "Found", "Command that judges it")
        rows = [(_claim(one), published(one.claim), one.finding.said, CLAIMS) for one in good]
        supported = Grid(headings=headings, rows=rows, widths=(0.3, 0.15, 0.35, 0.2))
    return [
        Heading(level=2, text="Published claims that this artifact supports"),
        supported,
        Heading(level=2, text="Published claims that this artifact does not support"),
        Grid(
            headings=("Claim", "Published", "Outcome", "Why"),
            rows=[(_claim(one), published(one.claim), one.finding.outcome, one.finding.said) for one in rest],
            widths=(0.33, 0.15, 0.15, 0.37),
        )
        if rest
        else "All published claims are supported.",
    ]


def _claim(one: Judgement) -> str:
    return f"Paper {one.claim.paper}, {one.claim.experiment or 'all'}: {one.claim.text}"
