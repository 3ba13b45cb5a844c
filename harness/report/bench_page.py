"""`harness bench` as an answer: the harness beside its alternatives, what was measured where, and what went wrong."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.analysis import numbers
from harness.bench.bench_record import (
    GOALS,
    RECORD,
    BenchRecord,
    ContenderRatio,
    WorkloadRow,
    compare,
    distances,
    tabulate,
)
from harness.bench.contenders import BATCH_PER_RANK, CONTENDERS, LEARNING_RATE
from harness.report.answer import Answer, Banner, Cell, Fact, Items, Section, Table, document, facts
from harness.report.sweep_facts import commit_words, core_hours, machine_words
from harness.schema.record import encode

TEXT = "index.md"
_SAID = (
    ("gradients", "bound", "the bound"),
    ("none", "bare", "a bare loop"),
    ("mwms", "harness", "`gradients`"),
    ("horovod-run", "harness", "`gradients`"),
    ("horovod", "harness", "`gradients`"),
    ("ddp", "harness", "`gradients`"),
)
_APART = (("none", "bare", "a bare loop"), ("gradients", "bare", "a bare loop"), ("gradients", "bound", "the bound"))
_PYTHONS = {"HOROVOD": "horovod", "TORCH": "ddp"}
_REFERENCES = {
    "bare": ("Over the bare loop", "Rows per second over those of the bare TensorFlow loop on as many ranks"),
    "bound": ("Over the bound", "Rows per second over those of the bare loop with MPI_Allreduce"),
    "harness": ("Over the harness", "Rows per second over those of the harness: on 2 ranks `gradients`"),
}


def bench_answer(record: BenchRecord) -> Answer:
    """Return the bench so far: rows per second, their ratios, training losses; the page as text is among its files."""
    lines, remarks = tabulate(record), _remarks(record)
    said = [
        (f"{CONTENDERS[top].title} over {words}", ratio)
        for top, table, words in _SAID
        if lines and (ratio := lines[0].ratios.get(top, {}).get(table)) is not None
    ]
    answer = Answer(
        question="How fast is the harness beside a bare loop, Keras, MultiWorkerMirroredStrategy and others?",
        sentence=f"{lines[0].workload}: {'; '.join(f'{title} {ratio}' for title, ratio in said)}."
        if said
        else "Nothing could be compared yet.",
        data={"workloads": lines, "blocks": record.blocks},
        banners=[Banner(kind="warning", text=text) for text in remarks[:3]],
        tiles=[
            Fact(name=title, value=f"{ratio.ratio:.3f}", detail=numbers.plural(ratio.blocks, "block"))
            for title, ratio in said
        ],
        facts=_facts(record),
        sections=[
            *(Section(title=table.title, name=name, blocks=[table]) for name, table in _tables(record, lines)),
            Section(title="Conditions", name="conditions", blocks=[Items(texts=[*_conditions(record), *remarks[3:]])]),
        ],
        command=_command(record),
        kind="bench",
        place="bench",
        title="The harness and its alternatives",
        when=record.started,
        machine=machine_words(record.machine),
    )
    return replace(answer, files={RECORD: encode(record).decode(), TEXT: document(answer)})


def _facts(record: BenchRecord) -> tuple[Fact, ...]:
    spent = sum(block.wall_s for block in record.blocks)
    rows = ", ".join(f"{name} {numbers.count(count)} rows" for name, count in record.rows.items())
    return facts(
        [
            ("Machine", machine_words(record.machine)),
            ("Date", f"{numbers.moment(record.started)} UTC"),
            ("Data", f"synthetic: {rows}"),
            ("Batch", f"{BATCH_PER_RANK} per rank"),
            ("Commit", commit_words(record)),
            ("Cost", f"{core_hours(2 * spent)} in {numbers.plural(len(record.blocks), 'block')}"),
        ]
    )


def _command(record: BenchRecord) -> str:
    per_workload = 1 + max((block.number for block in record.blocks), default=0)
    options = [f"WORKLOADS={','.join(record.rows)}", f"BLOCKS={per_workload}", f"SEED={record.seed}"]
    options += [f"CONTENDERS={','.join(record.contenders)}"]
    options += [f"{name}_PYTHON=PATH" for name, one in _PYTHONS.items() if one in record.contenders]
    options += ["FORCE=1"] if record.forced else []
    return " ".join(["make bench", *options])


def _tables(record: BenchRecord, lines: Sequence[WorkloadRow]) -> list[tuple[str, Table]]:
    """Return the rows per second, what they are compared with, and the training losses, a column for each workload."""

    def table(title: str, note: str, cell: Callable[[WorkloadRow, str], str | Cell]) -> Table:
        names = [name for name in record.contenders if any(cell(line, name) != "-" for line in lines)]
        return Table(
            title=title,
            headings=("contender", *(line.workload for line in lines)),
            rows=[(CONTENDERS[name].title, *(cell(line, name) for line in lines)) for name in names],
            texts=(),
            note=note,
        )

    def compared(reference: str) -> Callable[[WorkloadRow, str], str | Cell]:
        return lambda line, name: _ratio_cell(line.ratios.get(name, {}).get(reference))

    within = "formed within rounds; mean of the blocks' Winsor's means and its 95 % interval over blocks (Student's t)."
    spans = distances(record)
    blocks = [[block for block in record.blocks if block.workload == line.workload] for line in lines]
    apart = [
        (f"{CONTENDERS[top].title} over {words}, {where}", top, low, span)
        for top, low, words in _APART
        if {top, low} <= {*record.contenders}
        for where, span in spans.items()
    ]
    by_distance = Table(
        title="By the distance of the cores",
        headings=("contender", *(line.workload for line in lines)),
        rows=[
            (title, *(_ratio_cell(compare(each, top, low, judged=False, core_ns=span)) for each in blocks))
            for title, top, low, span in apart
        ],
        texts=(),
        note="Only rounds in which a ping-pong between the two ranks' cores took less than "
        f"{spans['far'][0]:.0f} ns (near), or as long or longer (far), {within}"
        if spans
        else "",
    )
    return [
        ("throughput", table("Training throughput", "Rows per second over all ranks: median of the blocks.", _rate)),
        *((key, table(title, f"{note}, {within}", compared(key))) for key, (title, note) in _REFERENCES.items()),
        *([("distance", by_distance)] if apart else []),
        (
            "losses",
            table(
                "Training loss",
                "Mean training loss of the first epoch: mean of the blocks. A dash: it did not come to its end.",
                lambda line, name: f"{line.losses[name]:.4f}" if name in line.losses else "-",
            ),
        ),
    ]


def _rate(line: WorkloadRow, name: str) -> str:
    if name not in line.rates:
        return "failed" if name in line.failed else "-"
    value = line.rates[name]
    return f"{float(f'{value:.4g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio_cell(ratio: ContenderRatio | None) -> str | Cell:
    if ratio is None:
        return "-"
    verdict = {None: "", True: " yes", False: " NO"}[ratio.met]
    return Cell(text=f"{ratio}{verdict}", value=ratio.ratio, tone="bad" if ratio.met is False else "")


def _conditions(record: BenchRecord) -> list[str]:
    machine = record.machine
    details = {f"{name}: {value}" for block in record.blocks for name, value in block.details.items()}
    commit = f"commit {record.commit[:12]}{' with changes' if record.dirty else ''}" if record.commit else "no checkout"
    goals = (f"{CONTENDERS[top].title} {goal:.2f} over {CONTENDERS[low].title}" for (top, low), goal in GOALS.items())
    return [
        f"{machine_words(machine)}, {machine.os}",
        f"{record.started:%Y-%m-%d %H:%M} UTC, {commit}",
        ", ".join(f"{name} {version}" for name, version in record.versions.items() if version),
        *sorted(details),
        f"batch {BATCH_PER_RANK} per rank, SGD {LEARNING_RATE}, one thread per rank, the same network and the same "
        "synthetic rows for all",
        f"in turns: a block starts all contenders at once on the same cores; in each round each trains about 50 ms, "
        f"in random order (seed {record.seed}), while the others wait; its first 3 steps are not timed, nor is what is "
        f"between epochs; every round's seconds per step in {RECORD}",
        "what each contender is and how it trains: docs/alternatives.md",
        f"least ratio required: {'; '.join(goals)}; yes or NO where the whole interval is on one side of it",
    ]


def _remarks(record: BenchRecord) -> list[str]:
    """Return that nothing is judged, where so, who stays out, and a line for every contender that failed in a block."""
    found = ["forced: measured although the machine may have been busy; nothing is judged"] if record.forced else []
    found += record.left_out.values()
    for block in record.blocks:
        for name, why in block.failed.items():
            found.append(f"{block.workload}, {CONTENDERS[name].title}, block {block.number + 1} failed: {why}")
    return found
