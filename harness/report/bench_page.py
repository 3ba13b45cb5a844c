"""`harness bench` as an answer: the harness beside its alternatives, what was measured where, and what went wrong."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes

from harness.analysis import numbers
from harness.bench.bench_record import (
    BATCH_PER_RANK,
    LEARNING_RATE,
    LOSS_EPOCH,
    RECORD,
    WARM_UP_EPOCHS,
    BenchRecord,
)
from harness.bench.contenders import CONTENDERS
from harness.bench.ratios import (
    RATIOS,
    ContenderRatio,
    RoundsMedian,
    WorkloadRow,
    has_bound,
    launched_contenders,
    tabulate,
)
from harness.report.answer import Answer, Banner, Cell, Fact, FigureBlock, Items, Section, Table, Tile, document, facts
from harness.report.launch_summary import commit_words, core_hours, machine_words
from harness.report.svg import BLUE, MUTED, draw
from harness.schema.record import encode

PLACE = "bench"  # reports/bench
TABLE, TEXT = "bench.csv", "index.md"
_COLUMNS = ("workload", "rows", "quantity", "unit", "rounds", "median", "min", "max", "required", "met", "note")


def bench_answer(record: BenchRecord) -> Answer:
    """Return the bench so far: throughputs, their ratios and training losses; the page as text is among its files."""
    lines = tabulate(record)
    last = zip(RATIOS, lines[-1].ratios, strict=True) if lines else ()
    compared = [(ratio, cell) for ratio, cell in last if cell.count]
    said = [f"{ratio.title}: {cell.middle:.2f} ({cell.low:.2f} to {cell.high:.2f})" for ratio, cell in compared[:3]]
    figure, remarks = _figure(lines[-1]) if lines else None, _remarks(record)
    answer = Answer(
        question="How fast is the harness beside Keras, MultiWorkerMirroredStrategy and PyTorch DDP?",
        sentence=f"{lines[-1].workload}: {'; '.join(said)}." if said else "Nothing could be compared yet.",
        data={"workloads": lines, "ratios": [ratio.title for ratio in RATIOS], "samples": record.samples},
        banners=[Banner(kind="warning", text=text) for text in remarks[:3]],
        tiles=[
            Tile(name=ratio.title, value=f"{cell.middle:.2f}", detail=f"{cell.low:.2f} to {cell.high:.2f} over rounds")
            for ratio, cell in compared[:5]
        ],
        facts=_facts(record, lines),
        sections=[
            *(
                Section(title=table.title, name=name, blocks=[table])
                for name, table in zip(("throughput", "ratios", "losses"), _tables(record, lines), strict=True)
            ),
            Section(title="", name="", blocks=[figure] if figure else []),
            Section(title="Conditions", name="conditions", blocks=[Items(texts=[*_conditions(record), *remarks[3:]])]),
        ],
        command=_command(record),
        kind="bench",
        place=PLACE,
        title="The harness and its alternatives",
        when=record.started,
        machine=machine_words(record.machine),
    )
    return replace(answer, files={RECORD: encode(record).decode(), TABLE: _csv(lines), TEXT: document(answer)})


def _facts(record: BenchRecord, lines: Sequence[WorkloadRow]) -> tuple[Fact, ...]:
    spent = sum(CONTENDERS[one.contender].ranks * one.wall_s for one in record.samples)
    rows = ", ".join(f"{line.workload} {numbers.count(line.rows)} rows" for line in lines)
    return facts(
        [
            ("Machine", machine_words(record.machine)),
            ("Date", f"{numbers.moment(record.started)} UTC"),
            ("Data", f"synthetic: {rows}"),
            ("Batch", f"{BATCH_PER_RANK} per rank"),
            ("Commit", commit_words(record)),
            ("Cost", f"{core_hours(spent)} in {numbers.plural(len(record.samples), 'launch')}"),
        ]
    )


def _command(record: BenchRecord) -> str:
    names = launched_contenders(record)
    options = [f"WORKLOADS={','.join(record.workloads)}", f"ROUNDS={record.rounds}", f"SEED={record.seed}"]
    options += [f"CONTENDERS={','.join(names)}"] if set(names) != set(CONTENDERS) else []
    options += ["HOROVOD_PYTHON=PATH"] if "horovod" in names else []
    options += [name for name, on in (("QUICK=1", record.quick), ("FORCE=1", record.forced)) if on]
    return " ".join(["make bench", *options])


def _tables(record: BenchRecord, lines: Sequence[WorkloadRow]) -> tuple[Table, Table, Table]:
    """Return the throughputs, their ratios and the training losses."""
    titles = [CONTENDERS[name].title for name in launched_contenders(record)]
    ratios = [
        (line.workload, *(_ratio_cell(*pair) for pair in zip(line.ratios, line.met, strict=True))) for line in lines
    ]
    return (
        Table(
            title="Training throughput",
            headings=("workload", "rows an epoch", *titles, *(["bound"] if has_bound(record) else [])),
            rows=[(line.workload, f"{line.rows:,}", *map(_rate_text, line.rates.values())) for line in lines],
            texts=(),
            note="Thousand rows per second over all ranks: median (min-max) of the rounds.",
        ),
        Table(
            title="Ratios",
            headings=("workload", *(ratio.title for ratio in RATIOS)),
            rows=[*ratios, ("required", *map(_required_text, RATIOS))],
            texts=(),
            note="Formed within each round: median (min-max) of the rounds.",
        ),
        Table(
            title="Training loss",
            headings=("workload", *titles),
            rows=[
                (line.workload, *(f"{cell.middle:.4f}" if cell.count else "-" for cell in line.losses.values()))
                for line in lines
            ],
            texts=(),
            note=f"Mean training loss of epoch {LOSS_EPOCH}, which all make: median of the rounds.",
        ),
    )


def _rate_text(cell: RoundsMedian) -> str:
    if not cell.count:
        return f"failed: {cell.note if len(cell.note) <= 40 else f'{cell.note[:37]}...'}"
    return f"{_digits(cell.middle)} ({_digits(cell.low)}-{_digits(cell.high)})"


def _digits(value: float) -> str:
    """Return three significant digits without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio_cell(cell: RoundsMedian, met: bool | None) -> str | Cell:
    if not cell.count:
        return "-"
    verdict = {None: "", True: " yes", False: " NO"}[met]
    text = f"{cell.middle:.2f} ({cell.low:.2f}-{cell.high:.2f}){verdict}"
    return Cell(text=text, value=cell.middle, tone="bad" if met is False else "")


def _required_text(ratio: ContenderRatio) -> str:
    if ratio.required is None:
        return "-"
    others = "" if ratio.elsewhere is None else f", {ratio.elsewhere:.2f} elsewhere"
    return f">= {ratio.required:.2f} for mnist-dnn{others}"


def _conditions(record: BenchRecord) -> list[str]:
    """Return where and how it was measured, a line for each fact."""
    machine = record.machine
    details = {f"{name}: {value}" for sample in record.samples for name, value in sample.details.items()}
    commit = f"commit {record.commit[:12]}{' with changes' if record.dirty else ''}" if record.commit else "no checkout"
    measured = 1 + max((sample.round for sample in record.samples), default=-1)
    memory = machine.memory_bytes / 2**30
    return [
        f"{machine.hostname}: {machine.cpu}, {machine.cores} cores, {memory:.0f} GiB, {machine.os}",
        f"{record.started:%Y-%m-%d %H:%M} UTC, {commit}",
        ", ".join(f"{name} {version}" for name, version in record.versions.items() if version),
        *sorted(details),
        f"batch {BATCH_PER_RANK} per rank, SGD {LEARNING_RATE}, one thread per rank, every rank on a core of its own, "
        "the same network and the same synthetic rows for all",
        f"{measured} of {record.rounds} rounds, order shuffled in each (seed {record.seed}); a launch gives the median "
        f"of its timed epochs (at least 3, after {WARM_UP_EPOCHS} of warm-up); raw samples in {RECORD}",
        "Keras fit: default settings without the progress bar; MWMS: MultiWorkerMirroredStrategy, custom training "
        "loop; none: the ranks side by side without synchronisation; with allreduce: the operation compiled in on one "
        "rank; MPI_Allreduce alone: the allreduces of an epoch without any training, in place; recording alone: the "
        "clocks and the log of an epoch's allreduces",
        "ParameterServerStrategy: its steps are not synchronous, each worker applies gradients of its own batch to "
        "weights that the other has changed since; two workers on a core each, one server, one coordinator",
        "bare TensorFlow: a loop that imports nothing of the harness, over rows that are float32 and standardised "
        "already, in their order, without synchronisation",
        "default settings: the workload's optimizer, schedule, weight decay and augmentation of the preset `default`, "
        "without synchronisation; the bare loop has the same mathematics",
        "Horovod: the bare loop with its average of all gradients; PyTorch DDP: eager, shuffled batches, over gloo",
        "bound: that bare step, and then MPI_Allreduce of its gradients' bytes in place",
    ]


def _remarks(record: BenchRecord) -> list[str]:
    """Return that nothing is judged, where so, and a line for every launch that failed or whose times are not valid."""
    found = ["forced: measured although the machine may have been busy; nothing is judged"] if record.forced else []
    if record.quick:
        found.append("quick: few rows and one round, which show that it works, not how fast it is; nothing is judged")
    for sample in record.samples:
        launch = f"{sample.workload}, {CONTENDERS[sample.contender].title}, round {sample.round + 1}"
        if sample.failed:
            found.append(f"{launch} failed: {sample.failed}")
        elif sample.invalid:
            use = "used nevertheless" if record.forced else "left out"
            found.append(f"{launch} {use}: {'; '.join(sample.invalid)}")
    return found


def _csv(lines: Sequence[WorkloadRow]) -> str:
    """Return the tables as CSV, one line for every cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for line in lines:
        for name, cell in line.rates.items():
            writer.writerow([line.workload, line.rows, name, "krows/s", *_numbers(cell), "", "", cell.note])
        for name, cell in line.losses.items():
            writer.writerow([line.workload, line.rows, f"{name}, loss", "1", *_numbers(cell), "", "", cell.note])
        for ratio, cell, met in zip(RATIOS, line.ratios, line.met, strict=True):
            name = f"{ratio.top}/{ratio.bottom}"
            judged = [] if met is None else [f"{ratio.least(line.workload):.4g}", "yes" if met else "no"]
            note = "" if cell.count else cell.note
            writer.writerow([line.workload, line.rows, name, "1", *_numbers(cell), *(judged or ["", ""]), note])
    return text.getvalue()


def _numbers(cell: RoundsMedian) -> list[object]:
    if not cell.count:
        return [0, "", "", ""]
    return [cell.count, *(f"{value:.6g}" for value in (cell.middle, cell.low, cell.high))]


def _figure(line: WorkloadRow) -> FigureBlock | None:
    """Return every contender's throughput on the last workload; None where none was measured."""
    titles = {name: contender.title for name, contender in CONTENDERS.items()}
    known = [(titles.get(name, name), cell) for name, cell in line.rates.items() if cell.count]
    if not known:
        return None
    title = f"Training throughput on {line.workload}"

    def paint(axes: Axes) -> None:
        for place, (_, cell) in enumerate(known):
            axes.barh([place], [cell.middle], height=0.62, color=BLUE.light)
            axes.plot([cell.low, cell.high], [place, place], color=MUTED.light, linewidth=1.4)
        axes.set_yticks(range(len(known)), [name for name, _ in known])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlim(left=0)
        axes.set_xlabel("Thousand rows per second, all ranks together")

    table = pd.DataFrame(
        [{"contender": name, "median": cell.middle, "least": cell.low, "most": cell.high} for name, cell in known]
    )
    spoken = "; ".join(f"{name}: {cell.middle:.3g}" for name, cell in known)
    picture = draw("throughput", title, paint, (7.2, 1.0 + 0.32 * len(known)), numbers=spoken)
    return FigureBlock(
        picture=picture,
        title=title,
        caption="Bars: medians of the rounds; error bars: minimum to maximum.",
        table=table,
    )
