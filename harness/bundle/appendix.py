"""A bundle's artifact description and evaluation appendix, in the form of SC."""

import platform
import re
import shlex
from collections.abc import Iterable, Sequence

from harness.analysis import units
from harness.analysis.launch_frames import final_frame, launch_frame
from harness.analysis.scaling import scale
from harness.bundle.bundled_sweep import SMOKE_MINUTES, BundledSweep, evaluation_seconds, execution_seconds, smoke
from harness.bundle.latex import evaluation_sentence, minimum_command
from harness.bundle.repetition import LOSS_BOUND
from harness.bundle.source_code import BundledCode
from harness.claims.claim_verdict import CONFIRMED
from harness.claims.judging_sweep import Judgement
from harness.report.answer import Fact
from harness.report.claims_answer import published_words
from harness.report.sweep_facts import account_facts, data_facts, machine_facts, workload_facts
from harness.report.sweep_tables import terminal_table
from harness.schema.record import RunRecord
from harness.schema.setting_words import study_name


def appendix(name: str, sweeps: Sequence[BundledSweep], judgements: Sequence[Judgement], code: BundledCode) -> str:
    """Return the appendix of the bundle `name` (its file), which has `code` in it."""
    parts = [
        f"# {escaped(f'Artifact description and evaluation: {name}')}",
        "Every number below was taken from the records in this bundle; nothing was filled in by hand.",
        *_overview(sweeps, code),
        *(part for number, sweep in enumerate(sweeps, 1) for part in _artifact(number, sweep, name)),
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
    lines = [_table_line(headings), _table_line(["---"] * len(headings)), *map(_table_line, rows)]
    return "\n".join(lines)


def _table_line(cells: Sequence[str]) -> str:
    words = [escaped(cell).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(words)} |"


def _items(texts: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(text)}" for text in texts)


def _shell(*lines: str) -> str:
    return "\n".join(["```sh", *lines, "```"])


def _facts(*facts: Fact) -> str:
    return markdown_table(("What", "Recorded"), [(fact.name, fact.value) for fact in facts])


def _minutes(seconds: float) -> str:
    value = seconds / 60
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def _overview(sweeps: Sequence[BundledSweep], code: BundledCode) -> list[str]:
    setup = "not measured" if code.setup_s is None else _minutes(code.setup_s)
    times = []
    for number, sweep in enumerate(sweeps, 1):
        runs = sweep.loaded.runs
        seconds = (execution_seconds(runs), sum(map(_start_seconds, runs)), sweep.analysis_s)
        times.append((f"A{number}", setup, *map(_minutes, seconds), units.count(len(runs))))
    return [
        "## Artifact description: contributions and artifacts",
        markdown_table(
            ("Contribution", "What was found", "Artifact", "Command that shows it"),
            [
                (f"C{number}", sweep.answer, f"A{number}: {sweep.name}", _report_command(sweep))
                for number, sweep in enumerate(sweeps, 1)
            ],
        ),
        "Time in minutes, measured. Set-up is of the software, once for all; execution is from the first launch's "
        "start to the last one's end without pauses; of it, starting is what launches spent before training.",
        markdown_table(("Artifact", "Set-up", "Execution", "of it starting", "Analysis", "Launches"), times),
        "The source of the harness, in the folder source:",
        _items(code.descriptions),
    ]


def _start_seconds(run: RunRecord) -> float:
    """Return what the slowest rank of a launch spent before training, in seconds."""
    return max(rank.import_s + rank.load_s + rank.distribute_s + rank.compile_s for rank in run.ranks)


def _report_command(sweep: BundledSweep) -> str:
    return shlex.join(["harness", "report", sweep.name])


def _artifact(number: int, sweep: BundledSweep, bundle: str) -> list[str]:
    loaded = sweep.loaded
    assert loaded.study is not None
    runs = sweep.runs
    launches = launch_frame(loaded.runs, loaded.epochs)
    scaling = scale(launches)
    results = "None: no launch has valid times. What the launches trained, and why they are not valid, is recorded."
    if scaling is not None:
        table = terminal_table(scaling, final_frame(launches))
        results = markdown_table(table.headings, [list(map(str, row)) for row in table.rows])
    parts = [
        f"## {escaped(f'Artifact A{number}: {study_name(loaded.study.sweep)}')}",
        "### Relation to contributions",
        escaped(
            f"A{number} is the sweep {sweep.name}: {units.plural(len(loaded.runs), 'launch')}, "
            f"{len(loaded.valid)} of them with valid times. It shows C{number}: {sweep.answer}"
        ),
        "### Expected results",
        results,
        "### Set-up: hardware and software",
        _facts(*machine_facts(runs), *account_facts(loaded.accounts)),
        "### Set-up: data and training",
        _facts(*data_facts(runs, launches), *workload_facts(runs[0].point.workload, runs)),
        "### Execution",
        f"It took {_minutes(execution_seconds(loaded.runs))} minutes on the machine above.",
        _shell(*sweep.command.splitlines()),
        "### Analysis",
    ]
    if sweep.figures:
        rows = [(f"{name}.svg", title, f"harness bundle redraw {bundle}") for name, title in sweep.figures.items()]
        parts.append(markdown_table(("Figure (also .pdf, .png, .csv)", "Shows", "Command that makes it"), rows))
    else:
        command = _report_command(sweep)
        parts.append(escaped(f"No launch is valid, so there is no figure; `{command}` draws the page that says why."))
    if sweep.limits:
        parts += ["### What it does not show", _items(sweep.limits)]
    return parts


def _evaluation(name: str, sweeps: Sequence[BundledSweep], code: BundledCode) -> list[str]:
    chosen, minutes = smoke(sweeps)
    left_out = [sweep.name for sweep in sweeps if sweep not in chosen]
    full = evaluation_seconds(sweeps)
    needs = "Python 3.11 or newer on Linux, a network for the third line."
    wheels = ""
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
        f"shortest launch of {units.plural(len(chosen), 'sweep')}. The minutes are those of figures and launches as "
        "recorded; the first launch of a new environment also compiles.",
        _shell(f"sh smoke.sh ../{name}"),
        *([escaped(f"Left out, because a single launch takes too long: {', '.join(left_out)}.")] if left_out else []),
        f"### Everything: {_minutes(full)} minutes",
        "Launches every sweep again, into the folder again, and draws reports and claims from what that gives. Exit "
        f"code 0: every launch has a record with valid times. {evaluation_sentence(full)}",
        _shell("sh reproduce.sh"),
        "### Minimum viable scale",
        "Of each sweep one launch of every layout for which the machine has cores:",
        _shell(*map(minimum_command, sweeps)),
        "### What to expect",
        _items(
            (
                "Weights: the same bit for bit where source, versions, MPI library, reduction and processor are those "
                "recorded, with one thread a rank and no GPU; else they are not compared.",
                f"Training loss: every epoch within {units.percent(LOSS_BOUND)} of the recorded one.",
                "Test accuracy: within the chance of so many test rows (binomial, 95 %).",
                "Epoch time: compared on the recorded machine only, within 95 % of repetitions.",
                "`harness reproduce` says each of these in a line with a verdict; exit code 0 means that all "
                "that could be compared is reproduced.",
            )
        ),
    ]


def _claims(judgements: Sequence[Judgement]) -> list[str]:
    """Return the published claims: first those that the records support, then those they do not."""
    confirmed = []
    others = []
    for judgement in judgements:
        claim = judgement.claim
        finding = judgement.finding
        row = (f"Paper {claim.paper}, {claim.experiment or 'all'}: {claim.text}", published_words(claim))
        if finding.outcome == CONFIRMED:
            confirmed.append((*row, finding.reason, "harness claims --results results"))
        else:
            others.append((*row, str(finding)))
    supported = "None of the papers' claims is confirmed by these records."
    unsupported = "All published claims are supported."
    if confirmed:
        supported = markdown_table(("Claim", "Published", "Found", "Command that judges it"), confirmed)
    if others:
        unsupported = markdown_table(("Claim", "Published", "Outcome, and why"), others)
    return [
        "## Published claims that this artifact supports",
        supported,
        "## Published claims that this artifact does not support",
        unsupported,
    ]
