"""What a bundle says of each sweep, and its artifact description and evaluation appendix in the form of SC."""

import platform
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from harness.analysis import numbers
from harness.analysis.frames import final_frame, launch_frame
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import scale
from harness.bundle.repetition import LOSS_BOUND
from harness.claims.claim_rules import CONFIRMED
from harness.claims.judgement import Judgement
from harness.report.answer import Fact
from harness.report.claims_page import published_words
from harness.report.sweep_facts import account_facts, banners, data_facts, machine_facts, workload_facts
from harness.report.sweep_page import headline
from harness.report.sweep_tables import terminal_table
from harness.schema.record import RunRecord
from harness.schema.setting_words import study_name
from harness.why.known_causes import diagnose_sweep

SMOKE_MINUTES = 30.0
_PAUSE = timedelta(seconds=30)  # between launches: what starts and ends them belongs to them


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledSweep:
    """One sweep of a bundle. `command` gives its launches, `limits` are sentences on what they do not show.

    `figures` are the titles of its figures by file without the ending, below the bundle. `analysis_s` is what drawing
    its report takes, in seconds.
    """

    name: str
    answer: str
    command: str
    loaded: Loaded
    analysis_s: float
    figures: dict[str, str]
    limits: tuple[str, ...]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The launches that statements rest on: the valid ones, else all."""
        return self.loaded.valid or self.loaded.runs

    @property
    def cheapest(self) -> RunRecord:
        """The launch that takes the least time, one with valid times if there is one."""
        return min(self.runs, key=lambda run: (run.wall_seconds, run.point.folder))


def bundled_sweep(loaded: Loaded, command: str, analysis_s: float, page: Path, root: Path) -> BundledSweep:
    """Return what is to be said of the sweep `loaded`, whose drawn `page` (a folder) lies below `root`."""
    assert loaded.study is not None, f"{loaded.folder} was checked to be a sweep"
    launches = launch_frame(loaded.runs, loaded.epochs)
    limits = [
        *(one.text for one in banners(loaded.valid or loaded.runs, launches)),
        *(f"{one.cause.capitalize()}: {one.evidence}" for one in diagnose_sweep(loaded)),
        *(f"{one.layout} was not run: {one.reason}." for one in loaded.study.skipped),
        *(f"A launch of {one.point.layout} failed: {one.reason}." for one in loaded.failures),
    ]
    bad = [f"{run.point.layout}, launch {run.point.repeat + 1}" for run in loaded.runs if run.invalid]
    if bad:
        of = f"{len(bad)} of {len(loaded.runs)} launches"
        limits.append(f"{of} have no valid times and are in no statistic: {'; '.join(bad)}.")
    figures = {}
    for path in sorted(page.glob("*.svg")):
        title = re.search(r"<dc:title>(.*?)</dc:title>", path.read_text(encoding="utf-8"), re.DOTALL)
        figures[path.with_suffix("").relative_to(root).as_posix()] = title[1] if title else path.stem
    return BundledSweep(
        name=loaded.folder.name,
        answer=headline(loaded, scale(launches)).replace("\u00a0", " "),
        command=command,
        loaded=loaded,
        analysis_s=analysis_s,
        figures=figures,
        limits=tuple(limits),
    )


def smoke(sweeps: Sequence[BundledSweep]) -> tuple[tuple[BundledSweep, ...], float]:
    """Return the sweeps whose cheapest launch fits into `SMOKE_MINUTES` beside all reports, and their minutes.

    The cheapest come first; what takes too long is left out.
    """
    total, chosen = sum(one.analysis_s for one in sweeps) / 60, []
    for one in sorted(sweeps, key=lambda one: one.cheapest.wall_seconds):
        if total + one.cheapest.wall_seconds / 60 <= SMOKE_MINUTES:
            total += one.cheapest.wall_seconds / 60
            chosen.append(one)
    return tuple(chosen), total


def execution_seconds(runs: Sequence[RunRecord]) -> float:
    """Return the seconds in which launches were under way, those at the same time counted once, short pauses too."""
    total, until = timedelta(), None
    for begin, end in sorted((run.ended - timedelta(seconds=run.wall_seconds), run.ended) for run in runs):
        until = begin if until is None or begin - until > _PAUSE else until
        total += max(timedelta(), end - until)
        until = max(until, end)
    return total.total_seconds()


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledCode:
    """What a bundle has of code: a sentence on each file, the `commands` that install it, whether it has `wheels`.

    `setup_s` is what a set-up took in seconds: of the wheels, else of this environment; None where that is not known.
    """

    said: tuple[str, ...]
    commands: tuple[str, ...]
    wheels: bool
    setup_s: float | None


def appendix(name: str, sweeps: Sequence[BundledSweep], judgements: Sequence[Judgement], code: BundledCode) -> str:
    """Return the appendix of the bundle `name` (its file), which has `code` in it."""
    parts = [
        f"# {escaped(f'Artifact description and evaluation: {name}')}",
        "Every number below was taken from the records in this bundle; nothing was filled in by hand.",
        *_overview(sweeps, code),
        *(part for number, one in enumerate(sweeps, 1) for part in _artifact(number, one, name)),
        *_evaluation(name, sweeps, code),
        *_claims(judgements),
    ]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Return `text` for Markdown, in one line."""
    text = " ".join(text.split())  # a line break would end a table's row; also makes blanks ordinary
    assert text, "a field of the appendix is empty"
    return re.sub(r"([<*_])", r"\\\1", text)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [[escaped(cell).replace("|", "\\|") for cell in row] for row in (headings, *rows)]
    lines.insert(1, ["---"] * len(headings))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _items(texts: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(text)}" for text in texts)


def _shell(*lines: str) -> str:
    return "\n".join(["```sh", *lines, "```"])


def _facts(*facts: Fact) -> str:
    return markdown_table(("What", "Recorded"), [(one.name, one.value) for one in facts])


def _minutes(seconds: float) -> str:
    value = seconds / 60
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def _overview(sweeps: Sequence[BundledSweep], code: BundledCode) -> list[str]:
    setup = "not measured" if code.setup_s is None else _minutes(code.setup_s)
    times = []
    for number, one in enumerate(sweeps, 1):
        starts = [[r.import_s + r.load_s + r.distribute_s + r.compile_s for r in run.ranks] for run in one.loaded.runs]
        spent = (execution_seconds(one.loaded.runs), sum(map(max, starts)), one.analysis_s)
        times.append((f"A{number}", setup, *map(_minutes, spent), numbers.count(len(one.loaded.runs))))
    return [
        "## Artifact description: contributions and artifacts",
        markdown_table(
            ("Contribution", "What was found", "Artifact", "Command that shows it"),
            [
                (f"C{n}", one.answer, f"A{n}: {one.name}", shlex.join(["harness", "report", one.name]))
                for n, one in enumerate(sweeps, 1)
            ],
        ),
        "Time in minutes, measured. Set-up is of the software, once for all; execution is from the first launch's "
        "start to the last one's end without pauses; of it, starting is what launches spent before training.",
        markdown_table(("Artifact", "Set-up", "Execution", "of it starting", "Analysis", "Launches"), times),
        "The source of the harness, in the folder source:",
        _items(code.said),
    ]


def _artifact(number: int, one: BundledSweep, bundle: str) -> list[str]:
    runs, launches = one.runs, launch_frame(one.loaded.runs, one.loaded.epochs)
    assert one.loaded.study is not None
    scaling = scale(launches)
    results = "None: no launch has valid times. What the launches trained, and why they are not valid, is recorded."
    if scaling is not None:
        table = terminal_table(scaling, final_frame(launches))
        results = markdown_table(table.headings, [list(map(str, row)) for row in table.rows])
    found = [
        f"## {escaped(f'Artifact A{number}: {study_name(one.loaded.study.sweep)}')}",
        "### Relation to contributions",
        escaped(
            f"A{number} is the sweep {one.name}: {numbers.plural(len(one.loaded.runs), 'launch')}, "
            f"{len(one.loaded.valid)} of them with valid times. It shows C{number}: {one.answer}"
        ),
        "### Expected results",
        results,
        "### Set-up: hardware and software",
        _facts(*machine_facts(runs), *account_facts(one.loaded.accounts)),
        "### Set-up: data and training",
        _facts(*data_facts(runs, launches), *workload_facts(runs[0].point.workload, runs)),
        "### Execution",
        f"It took {_minutes(execution_seconds(one.loaded.runs))} minutes on the machine above.",
        _shell(*one.command.splitlines()),
        "### Analysis",
    ]
    if one.figures:
        rows = [(f"{name}.svg", title, f"harness report --from {bundle}") for name, title in one.figures.items()]
        found.append(markdown_table(("Figure (also .pdf, .png, .csv)", "Shows", "Command that makes it"), rows))
    else:
        command = shlex.join(["harness", "report", one.name])
        found.append(escaped(f"No launch is valid, so there is no figure; `{command}` draws the page that says why."))
    if one.limits:
        found += ["### What it does not show", _items(one.limits)]
    return found


def _evaluation(name: str, sweeps: Sequence[BundledSweep], code: BundledCode) -> list[str]:
    chosen, minutes = smoke(sweeps)
    left = [one.name for one in sweeps if one not in chosen]
    full = sum(execution_seconds(one.loaded.runs) + one.analysis_s for one in sweeps)
    needs, wheels = "Python 3.11 or newer on Linux, a network for the third line.", ""
    if code.wheels:  # they are of one Python and one kind of machine
        version = ".".join(platform.python_version_tuple()[:2])
        needs = f"Python {version} on {platform.system()} {platform.machine()}, which the wheels are for; no network."
        wheels = " --no-index --find-links wheels"
    return [
        "## Artifact evaluation",
        "### Set-up",
        escaped(needs),
        _shell(
            f"tar xzf {name} && cd {name.removesuffix('.tar.gz')}",
            "python3 -m venv .venv && . .venv/bin/activate",
            f"pip install --no-deps --require-hashes -r requirements.lock{wheels}",
            *code.commands,
        ),
        f"### Smoke variant: {_minutes(60 * minutes)} minutes, at most {SMOKE_MINUTES:.0f}",
        "Checks the bundle, draws every figure again and compares it with the bundle's byte for byte, and repeats the "
        f"shortest launch of {numbers.plural(len(chosen), 'sweep')}. The minutes are those of figures and launches as "
        "recorded; the first launch of a new environment also compiles.",
        _shell(f"sh smoke.sh ../{name}"),
        *([escaped(f"Left out, because a single launch takes too long: {', '.join(left)}.")] if left else []),
        f"### Everything: {_minutes(full)} minutes",
        "Launches every sweep again, into the folder again, and draws reports and claims from what that gives. Exit "
        "code 0: every launch has a record with valid times.",
        _shell("sh reproduce.sh"),
        "### What to expect",
        _items(
            (
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


def _claims(judgements: Sequence[Judgement]) -> list[str]:
    """Return the published claims: first those that the records support, then those they do not."""
    good, rest = [], []
    for one in judgements:
        claim, finding = one.claim, one.finding
        row = (f"Paper {claim.paper}, {claim.experiment or 'all'}: {claim.text}", published_words(claim))
        if finding.outcome == CONFIRMED:
            good.append((*row, finding.said, "harness claims --results results"))
        else:
            rest.append((*row, str(finding)))
    supported = "None of the papers' claims is confirmed by these records."
    unsupported = "All published claims are supported."
    if good:
        supported = markdown_table(("Claim", "Published", "Found", "Command that judges it"), good)
    if rest:
        unsupported = markdown_table(("Claim", "Published", "Outcome, and why"), rest)
    return [
        "## Published claims that this artifact supports",
        supported,
        "## Published claims that this artifact does not support",
        unsupported,
    ]
