"""`harness bench` as an answer: the harness beside its alternatives, what was measured where, and what went wrong."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from harness.analysis import units
from harness.bench.bench_record import (
    GOALS,
    RECORD,
    BenchRecord,
    ContenderRatio,
    Waiting,
    WorkloadRow,
    tabulate,
)
from harness.bench.contenders import BATCH_PER_RANK, CONTENDERS, LEARNING_RATE
from harness.report.answer import Answer, Banner, Cell, Fact, Items, Section, Table, document, facts
from harness.report.run_words import commit_words, core_hours, machine_words
from harness.schema.record import encode

TEXT = "index.md"
_HEADLINE = (
    ("gradients", "bound", "the reference"),
    ("none", "bare", "a bare loop"),
    ("run", "bare", "a bare loop"),
    ("mwms", "harness", "the harness"),
    ("horovod-run", "harness", "the harness"),
    ("horovod", "harness", "the harness"),
    ("ddp", "harness", "the harness"),
)
_PYTHONS = {"horovod": "horovod", "torch": "ddp"}
_REFERENCES = {
    "bare": ("Over the bare loop", "Samples per second over those of the bare TensorFlow loop on as many ranks"),
    "bound": ("Over the reference", "Samples per second over those of the bare loop with MPI_Allreduce"),
    "harness": ("Over the harness", "Samples per second over those of the harness: on 2 ranks `gradients`"),
}


def bench_answer(record: BenchRecord) -> Answer:
    """Return the bench so far: rates, their ratios, training losses; the page as text is among its files."""
    lines = tabulate(record)
    remarks = _remarks(record)
    ratios = _headline_ratios(lines)
    sentence = "Nothing could be compared yet."
    if ratios:
        sentence = f"{lines[0].workload}: {'; '.join(f'{title} {ratio}' for title, ratio in ratios)}."
    conditions = Items(texts=[*_conditions(record), *remarks[3:]])
    per_workload = 1 + max((block.number for block in record.blocks), default=0)
    options = [f"--workloads {','.join(record.rows)}", f"--blocks {per_workload}"]
    options += [f"--contenders {','.join(record.contenders)}"]
    options += [f"--{name}-python PATH" for name, contender in _PYTHONS.items() if contender in record.contenders]
    options += ["--force"] if record.forced else []
    answer = Answer(
        question="How fast is the harness beside a bare loop, Keras, MultiWorkerMirroredStrategy and others?",
        sentence=sentence,
        data={"workloads": lines, "blocks": record.blocks},
        banners=[Banner(kind="warning", text=text) for text in remarks[:3]],
        tiles=[
            Fact(name=title, value=f"{ratio.ratio:.3f}", detail=units.plural(ratio.blocks, "block"))
            for title, ratio in ratios
        ],
        facts=_facts(record),
        sections=[
            *(Section(title=table.title, name=name, elements=[table]) for name, table in _tables(record, lines)),
            *_waiting_section(record.waiting),
            Section(title="Conditions", name="conditions", elements=[conditions]),
        ],
        command=" ".join(["harness bench", *options]),
        kind="bench",
        place="bench",
        title="The harness and its alternatives",
        when=record.started,
        machine=machine_words(record.machine),
    )
    return replace(answer, files={RECORD: encode(record).decode(), TEXT: document(answer)})


def _headline_ratios(lines: Sequence[WorkloadRow]) -> list[tuple[str, ContenderRatio]]:
    """Return the ratios of the first workload that stand in the first sentence, each with its words."""
    if not lines:
        return []
    ratios = []
    for contender, reference, words in _HEADLINE:
        ratio = lines[0].ratios.get(contender, {}).get(reference)
        if ratio is not None:
            ratios.append((f"{CONTENDERS[contender].title} over {words}", ratio))
    return ratios


def _facts(record: BenchRecord) -> tuple[Fact, ...]:
    spent = sum(block.wall_s for block in record.blocks)
    return facts(
        [
            ("Machine", machine_words(record.machine)),
            ("Date", f"{units.moment(record.started)} UTC"),
            ("Data", f"synthetic: {_rows_words(record)}"),
            ("Batch", f"{BATCH_PER_RANK} per rank"),
            ("Commit", commit_words(record)),
            ("Cost", f"{core_hours(2 * spent)} in {units.plural(len(record.blocks), 'block')}"),
        ]
    )


def _rows_words(record: BenchRecord) -> str:
    """Return the rows of an epoch, once where all workloads have as many."""
    counts = set(record.rows.values())
    if len(counts) == 1:
        return f"{units.count(counts.pop())} rows each"
    return ", ".join(f"{name} {units.count(count)} rows" for name, count in record.rows.items())


_WITHIN = "formed within rounds; mean of the blocks' Winsor's means and its 95 % CI over blocks (Student's t)."
_Cell = Callable[[WorkloadRow, str], str | Cell]  # of a workload and a contender


def _tables(record: BenchRecord, lines: Sequence[WorkloadRow]) -> list[tuple[str, Table]]:
    """Return the samples per second, what they are compared with, and the training losses, a column for each workload.

    A table without a row is left out.
    """

    table = partial(_contenders_table, record, lines)
    compared = [
        (reference, table(title, f"{note}, {_WITHIN}", _ratio_over(reference)))
        for reference, (title, note) in _REFERENCES.items()
    ]
    losses = "Mean training loss of the first epoch: mean of the blocks. A dash: it did not come to its end."
    tables = [
        ("throughput", table("Training throughput", "Samples per second over all ranks: median of the blocks.", _rate)),
        *compared,
        ("losses", table("Training loss", losses, _loss)),
    ]
    return [(name, content) for name, content in tables if content.rows]


def _contenders_table(record: BenchRecord, lines: Sequence[WorkloadRow], title: str, note: str, cell: _Cell) -> Table:
    """Return a row for each contender that has a cell in some workload."""
    rows = []
    for name in record.contenders:
        cells = [cell(line, name) for line in lines]
        if any(text != "-" for text in cells):
            rows.append((CONTENDERS[name].title, *cells))
    headings = ("Contender", *(line.workload for line in lines))
    return Table(title=title, headings=headings, rows=rows, texts=(), note=note)


def _ratio_over(reference: str) -> _Cell:
    return lambda line, name: _ratio_cell(line.ratios.get(name, {}).get(reference))


def _loss(line: WorkloadRow, name: str) -> str:
    return f"{line.losses[name]:.4f}" if name in line.losses else "-"


def _rate(line: WorkloadRow, name: str) -> str:
    if name not in line.rates:
        return "failed" if name in line.failed else "-"
    value = line.rates[name]
    return f"{float(f'{value:.4g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio_cell(ratio: ContenderRatio | None) -> str | Cell:
    if ratio is None:
        return "-"
    verdict = {None: "", True: " yes", False: " NO"}[ratio.met]
    interval = f"{ratio.interval.low:.3f} to {ratio.interval.high:.3f}" if ratio.interval else ""
    tone = "bad" if ratio.met is False else ""
    return Cell(text=f"{ratio.ratio:.3f}{verdict}", note=interval, value=ratio.ratio, tone=tone)


def _waiting_section(waiting: Waiting) -> list[Section]:
    """Return what a user waits for beside training; none where that was not measured."""
    texts = [f"not measured: {waiting.failed}"] if waiting.failed else []
    start_up = waiting.start_up
    if start_up is not None:
        ratio = start_up.ratio
        times = f"{fmean(start_up.run_s) / fmean(start_up.plain_s):.2f} times as long"
        if ratio is not None:
            times = f"{ratio.ratio:.2f} times as long (95 % CI {units.ratio_span(ratio.interval)})"
        texts.append(
            f"a small script on 2 ranks: {units.seconds(fmean(start_up.run_s))} by harness run, "
            f"{units.seconds(fmean(start_up.plain_s))} by mpirun alone, where each rank trains all: {times}; means of "
            f"{units.plural(len(start_up.run_s), 'pair')} of interleaved starts"
        )
    first = waiting.first_interval
    if first is not None:
        texts.append(
            f"make sweep of MNIST-DNN on 1 and 2 ranks: {units.seconds(first.seconds)} from the command to the page of "
            f"three blocks, the speedup within {units.percent(first.reach, 1)}; at that pace within "
            f"{units.percent(first.reach_after_a_minute, 1)} after a minute"
        )
    return [Section(title="What one waits for", name="waiting", elements=[Items(texts=texts)])] if texts else []


def _conditions(record: BenchRecord) -> list[str]:
    machine = record.machine
    details = {f"{name}: {value}" for block in record.blocks for name, value in block.details.items()}
    commit = "no checkout"
    if record.commit:
        commit = f"commit {record.commit[:12]}{' with changes' if record.dirty else ''}"
    goals = [
        f"{CONTENDERS[contender].title} {goal:.2f} over {CONTENDERS[reference].title}"
        for (contender, reference), goal in GOALS.items()
    ]
    return [
        f"{machine_words(machine)}, {machine.os}",
        f"{record.started:%Y-%m-%d %H:%M} UTC, {commit}",
        ", ".join(f"{name} {version}" for name, version in record.versions.items() if version),
        *sorted(details),
        f"batch {BATCH_PER_RANK} per rank, SGD {LEARNING_RATE}, one thread per rank, the same network and the same "
        "synthetic rows for all",
        f"interleaved: a block starts all contenders at once on the same cores; in each round each trains about 50 ms, "
        f"in random order, while the others wait; its first 3 steps are not timed, nor is what is "
        f"between epochs; every round's seconds per step in {RECORD}",
        "what each contender is and how it trains: docs/alternatives.md",
        f"least ratio required: {'; '.join(goals)}; yes or NO where the whole interval is on one side of it",
    ]


def _remarks(record: BenchRecord) -> list[str]:
    """Return that nothing is judged, where so, who stays out, and a line for every contender that failed in a block."""
    remarks = []
    if record.forced:
        remarks.append("forced: measured although the machine may have been busy; nothing is judged")
    remarks += record.left_out.values()
    for block in record.blocks:
        for name, why in block.failed.items():
            remarks.append(f"{block.workload}, {CONTENDERS[name].title}, block {block.number + 1} failed: {why}")
    return remarks
