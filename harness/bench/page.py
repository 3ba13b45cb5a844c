"""The bench in words: what was measured where, both tables, and everything that went wrong."""

import csv
import io
from collections.abc import Sequence

from harness.bench.contenders import CONTENDERS
from harness.bench.plan import BATCH_PER_RANK, LEARNING_RATE, LOSS_EPOCH, WARM_UP_EPOCHS, BenchRecord
from harness.bench.table import RATIOS, Cell, ContenderRatio, WorkloadRow, has_bound, shown, tabulate
from harness.schema.record import encode

PAGE, RECORD, TABLE = "index.md", "bench.json", "bench.csv"
_COLUMNS = ("workload", "rows", "quantity", "unit", "rounds", "median", "min", "max", "required", "met", "note")


def bench_files(record: BenchRecord) -> dict[str, str]:
    """Return page, table and every launch as texts by the names of their files."""
    lines = tabulate(record)
    return {RECORD: encode(record).decode(), TABLE: render_csv(lines), PAGE: render_page(record, lines)}


Grid = tuple[str, list[str], list[list[str]]]
"""A table of texts: title, headings, rows."""


def grids(record: BenchRecord, lines: Sequence[WorkloadRow]) -> tuple[Grid, ...]:
    """Return the throughputs, their ratios and the training losses."""
    titles = [CONTENDERS[name].title for name in shown(record)]
    rates = [[line.workload, f"{line.rows:,}", *map(_rate, line.rates.values())] for line in lines]
    ratios = [[line.workload, *map(_ratio, line.ratios, line.met)] for line in lines]
    losses = [[line.workload, *map(_loss, line.losses.values())] for line in lines]
    required = [_required(ratio) for ratio in RATIOS]
    return (
        (
            "Training throughput, thousand rows per second over all ranks: median (min-max) of the rounds",
            ["workload", "rows an epoch", *titles, *(["bound"] if has_bound(record) else [])],
            rates,
        ),
        (
            "Ratios: formed within each round, median (min-max) of the rounds",
            ["workload", *(ratio.title for ratio in RATIOS)],
            [*ratios, ["required", *required]],
        ),
        (
            f"What it taught: mean training loss of epoch {LOSS_EPOCH}, which all make; median of the rounds",
            ["workload", *titles],
            losses,
        ),
    )


def render_page(record: BenchRecord, lines: Sequence[WorkloadRow]) -> str:
    """Return the page in Markdown, with columns that also line up as plain text."""
    parts = ["# Bench\n", *(f"- {entry}" for entry in header(record))]
    for title, headings, rows in grids(record, lines):
        parts += [f"\n## {title}\n", *_markdown(headings, rows)]
    parts += ["", *(f"- {entry}" for entry in remarks(record))]
    return "\n".join(parts) + "\n"


def render_csv(lines: Sequence[WorkloadRow]) -> str:
    """Return both tables as CSV, one line for every cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for line in lines:
        for name, cell in line.rates.items():
            writer.writerow([line.workload, line.rows, name, "krows/s", *_figures(cell), "", "", cell.note])
        for name, cell in line.losses.items():
            writer.writerow([line.workload, line.rows, f"{name}, loss", "1", *_figures(cell), "", "", cell.note])
        for ratio, cell, met in zip(RATIOS, line.ratios, line.met, strict=True):
            name = f"{ratio.top}/{ratio.bottom}"
            judged = [] if met is None else [f"{ratio.least(line.workload):.4g}", "yes" if met else "no"]
            note = "" if cell.count else cell.note
            writer.writerow([line.workload, line.rows, name, "1", *_figures(cell), *(judged or ["", ""]), note])
    return text.getvalue()


def header(record: BenchRecord) -> list[str]:
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
        "the same network and the same rows of the synthetic twin for all",
        f"{measured} of {record.rounds} rounds, order shuffled in each (seed {record.seed}); a launch gives the median "
        f"of its timed epochs (at least 3, after {WARM_UP_EPOCHS} of warm-up); raw samples in {RECORD}",
        "Keras fit: default settings without the progress bar; MWMS: MultiWorkerMirroredStrategy, custom training "
        "loop; none: the ranks side by side without synchronisation; summing alone: the operation compiled in on one "
        "rank; MPI_Allreduce alone: the sums of an epoch without any training, in place; recording alone: the "
        "clocks and the log of an epoch's sums",
        "ParameterServerStrategy: its steps are not synchronous, each worker applies gradients of its own batch to "
        "weights that the other has changed since; two workers on a core each, one server, one coordinator",
        "bare TensorFlow: a loop that imports nothing of the harness, over rows that are float32 and standardised "
        "already, in their order, without synchronisation",
        "default settings: the workload's optimizer, schedule, weight decay and augmentation of the preset `default`, "
        "without synchronisation; the bare loop has the same mathematics",
        "Horovod: the bare loop with its average of all gradients; PyTorch DDP: eager, shuffled batches, over gloo",
        "bound: that bare step, and then MPI_Allreduce of its gradients' bytes in place",
    ]


def remarks(record: BenchRecord) -> list[str]:
    """Return one line for every launch that failed or whose times are in doubt."""
    found = ["**forced: measured whatever else the machine was doing; nothing is judged**"] if record.forced else []
    if record.quick:
        found.append(
            "**quick: few rows and one round, which show that it works, not how fast it is; nothing is judged**"
        )
    for sample in record.samples:
        launch = f"{sample.workload}, {CONTENDERS[sample.contender].title}, round {sample.round + 1}"
        if sample.failed:
            found.append(f"{launch} failed: {sample.failed}")
        elif sample.invalid:
            use = "used all the same" if record.forced else "left out"
            found.append(f"{launch} {use}: {'; '.join(sample.invalid)}")
    return found


def _rate(cell: Cell) -> str:
    if not cell.count:
        return f"failed: {_short(cell.note)}"
    return f"{_digits(cell.middle)} ({_digits(cell.low)}-{_digits(cell.high)})"


def _ratio(cell: Cell, met: bool | None) -> str:
    if not cell.count:
        return "-"
    verdict = {None: "", True: " yes", False: " **NO**"}[met]
    return f"{cell.middle:.2f} ({cell.low:.2f}-{cell.high:.2f}){verdict}"


def _loss(cell: Cell) -> str:
    return f"{cell.middle:.4f}" if cell.count else "-"


def _required(ratio: ContenderRatio) -> str:
    if ratio.required is None:
        return "-"
    others = "" if ratio.elsewhere is None else f", {ratio.elsewhere:.2f} elsewhere"
    return f">= {ratio.required:.2f} for mnist-dnn{others}"


def _digits(value: float) -> str:
    """Return three significant digits without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _figures(cell: Cell) -> list[object]:
    if not cell.count:
        return [0, "", "", ""]
    return [cell.count, *(f"{value:.6g}" for value in (cell.middle, cell.low, cell.high))]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    safe = [[text.replace("|", "\\|") for text in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    drawn = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in safe
    ]
    return [drawn[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *drawn[1:]]
