"""Launches in a reader's words: where, when and with what they ran, on which data, at what cost; and what must be known
before their numbers are believed.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pandas as pd

from harness.analysis import numbers
from harness.analysis.frames import launch_frame
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import Scaling
from harness.base.provenance import Machine
from harness.datasets import info, names, own_file_lines
from harness.report.answer import Banner, Fact, distinct, facts
from harness.schema.data_record import DataRecord
from harness.schema.job_usage import Account, JobUsage
from harness.schema.message_cost import Probe
from harness.schema.record import Provenance, RunRecord
from harness.schema.setting_words import conditions
from harness.schema.sweep import Failure, Layout
from harness.schema.workload import IMAGENET, Workload, batch_mode, is_script, script_command

if TYPE_CHECKING:
    from harness.bench.bench_record import BenchRecord

DISTURBED = (
    "trained in turns beside other work: times on undisturbed cores leave out the rounds that it met, times as they "
    "ran contain what it took."
)
_BRIEF_S, _ENOUGH_S = 1.0, 5.0  # of a launch's epochs
DOUBTFUL = 1.25  # efficiency beyond which a rank's rows that fit a cache are hardly the reason
# What must be the same in all launches of a study, and what to call it. None: says nothing about the launch.
_COMMON: tuple[tuple[str, Callable[[RunRecord], object | None]], ...] = (
    ("state of the code", lambda run: run.point.code or "unknown"),
    ("commit", lambda run: run.provenance.commit[:12] or "none"),
    ("machine", lambda run: run.provenance.machine.hostname + " " + run.provenance.machine.fingerprint[:8]),
    ("harness version", lambda run: run.provenance.harness),
    ("TensorFlow version", lambda run: run.provenance.tensorflow),
    ("MPI library", lambda run: run.provenance.mpi_library),
    ("way of summing", lambda run: run.provenance.reduction if run.point.layout.ranks > 1 else None),
    ("data", lambda run: f"{run.data.kind} {run.data.sha256[:12]}"),
    ("number of threads per rank", lambda run: run.point.layout.threads),
)


def run_facts(
    runs: Sequence[RunRecord], every: Sequence[RunRecord], failed: Sequence[Failure] = ()
) -> tuple[Fact, ...]:
    """Return what stands on the first screen: where, when, on which data and code `runs` ran, what all launches cost.

    All are `every` run and those that `failed`.
    """
    per_rank = [rank.batch for run in runs for rank in run.ranks]
    whole = [run.global_batch for run in runs]
    batch = f"{numbers.span(min(per_rank), max(per_rank))} per rank, {numbers.span(min(whole), max(whole))} global"
    return place_facts(
        runs,
        every,
        ("Data", distinct((data_words(run) for run in fewest_and_most(runs)), "; ")),
        ("Batch", "the script's own" if is_script(runs[0].point.workload) else batch),
        failed=failed,
    )


def place_facts(
    runs: Sequence[RunRecord], every: Sequence[RunRecord], *beside: tuple[str, object], failed: Sequence[Failure] = ()
) -> tuple[Fact, ...]:
    """Return where, when and on which code `runs` ran, what is told `beside`, and what all launches cost."""
    return facts(
        [
            ("Machine", distinct((machine_words(run.provenance.machine) for run in runs), "; ")),
            ("Date", days(run.started for run in runs)),
            *beside,
            ("Commit", distinct(commit_words(run.provenance) for run in runs)),
            ("Cost", cost(every, failed)),
        ]
    )


def machine_words(machine: Machine) -> str:
    """Return a machine in one line: its name, processor, cores, memory and GPUs."""
    gpus = f", {numbers.plural(len(machine.gpus), 'GPU')}" if machine.gpus else ""
    memory = numbers.memory(machine.memory_bytes)
    return f"{machine.hostname}: {machine.cpu}, {numbers.plural(machine.cores, 'core')}, {memory}{gpus}"


def commit_words(origin: "Provenance | Probe | BenchRecord") -> str:
    """Return the commit that ran, and that files differed from it where they did."""
    return f"{origin.commit[:12] or 'no checkout'}{', with uncommitted changes' if origin.dirty else ''}"


def days(moments: Iterable[datetime]) -> str:
    """Return from when to when something was measured, in UTC: ``2026-01-05 12:00 to 12:40 UTC``."""
    found = sorted(moment.astimezone(UTC) for moment in moments)
    first, last = found[0], found[-1]
    begin, end = f"{first:%Y-%m-%d %H:%M}", f"{last:%Y-%m-%d %H:%M}"
    if begin == end:
        return f"{begin} UTC"
    return f"{begin} to {f'{last:%H:%M}' if first.date() == last.date() else end} UTC"


def cost(runs: Sequence[RunRecord], failed: Sequence[Failure] = ()) -> str:
    """Return the core-hours of `runs`, invalid ones too, from the start of each rank's process to its record, and more.

    More: launches that `failed` or were stopped, as long as they had this machine's cores.

    Launches of one block share its cores while they last. A point with several records was launched again, as its times
    were not valid.
    """
    used: dict[object, list[tuple[int, float]]] = {}
    for run in runs:
        seconds = (run.ended - run.started).total_seconds() + max(rank.import_s for rank in run.ranks)
        key = (run.point.workload, run.point.code, run.block) if run.block else id(run)
        used.setdefault(key, []).append((run.point.layout.cores, seconds))
    spent = sum(max(cores for cores, _ in one) * max(seconds for _, seconds in one) for one in used.values())
    spent += sum(one.point.layout.cores * one.seconds for one in failed)
    replaced = len(runs) - len({run.point.key for run in runs})
    again = f", {replaced} of them replaced" if replaced else ""
    again += f", and {len(failed)} cut short" if failed else ""
    return f"{core_hours(spent)} in {numbers.plural(len(runs), 'launch')}{again}"


def core_hours(seconds: float) -> str:
    """Return so many seconds of one core in words."""
    return f"{numbers.significant(seconds / 3600, 2)} core-hours"


def account_facts(accounts: Sequence[Account]) -> tuple[Fact, ...]:
    """Return what the scheduler's accounting says of the jobs, and of how many it says nothing, and why."""
    jobs = {(one.scheduler, one.job, one.usage): one for one in accounts}.values()
    used = [one.usage for one in jobs if one.usage]
    why = [one.missing or "nothing is known yet" for one in jobs if one.usage is None]
    words = [_used(used)] if used else []
    words += [f"none of {numbers.plural(why.count(said), 'job')}: {said}" for said in dict.fromkeys(why)]
    return facts([("Accounting", "; ".join(words))])


def _used(used: Sequence[JobUsage]) -> str:
    """Return the sums of what jobs used, and the most memory."""
    most = max(used, key=lambda one: one.memory_bytes or 0)
    memory = f"{numbers.memory(most.memory_bytes)} in {most.memory_of}" if most.memory_bytes else None
    hours = numbers.significant(sum(one.node_hours for one in used), 2)
    cpu, energy = [one.cpu_s for one in used if one.cpu_s], [one.energy_j for one in used if one.energy_j]
    return ", ".join(
        [
            f"{hours} node-hours of {numbers.plural(len(used), 'job')}",
            f"processor time {_sum(numbers.seconds(sum(cpu)), len(cpu), len(used))}",
            f"memory at most {memory}" if memory else "memory not measured",
            f"energy {_sum(f'{numbers.significant(sum(energy) / 3.6e6, 2)} kWh', len(energy), len(used))}",
        ]
    )


def _sum(text: str, known: int, jobs: int) -> str:
    """Return a sum, and of how many jobs it is where some were not measured."""
    return "not measured" if not known else text if known == jobs else f"{text} (of {known} of them)"


def data_words(run: RunRecord) -> str:
    """Return what a launch was trained on, and which part of it where a piece stands in for the whole."""
    data, file = run.data, run.point.workload.data_file
    if is_script(run.point.workload):
        return "the script's own"
    name = Path(file).name if file else info(data.name).title if data.name in names() else data.name
    if data.kind == "synthetic":
        return f"synthetic stand-in for {name}, {numbers.count(trained_rows(run))} training rows"
    return f"{name}, {partial(run) or f'all {numbers.count(trained_rows(run))} training rows'}"


def trained_rows(run: RunRecord) -> int:
    """Return the training rows that the ranks of a launch were given, all together."""
    return sum(rank.rows for rank in run.ranks)


def partial(run: RunRecord) -> str:
    """Return ``partial: 8,000 of 10,900,000 training rows`` where real data is a piece of the whole, else nothing."""
    data = run.data
    if data.kind != "real" or is_script(run.point.workload):
        return ""
    whole = max(data.train_rows, info(data.name).train_rows if data.name in names() else 0)
    if trained_rows(run) >= 0.99 * whole:  # rows that fill no batch on every rank are no piece
        return ""
    return f"partial: {numbers.count(trained_rows(run))} of {numbers.count(whole)} training rows"


def fewest_and_most(runs: Sequence[RunRecord]) -> Sequence[RunRecord]:
    """Return the runs of the least and of the most rows: all that weak scaling needs told."""
    ordered = sorted(runs, key=trained_rows)
    return (ordered[0], ordered[-1])


def layout_words(layout: Layout, one_machine: bool) -> str:
    """Return where a launch ran: ``2 ranks``, ``2 nodes × 4 ranks, 2 threads each``; on one machine without nodes."""
    ranks = numbers.ranks(layout.ranks)
    if not one_machine:
        ranks = f"{numbers.plural(layout.nodes, 'node')} × {numbers.ranks(layout.ranks_per_node)}"
        ranks += f" ({layout.last_node} on the last)" if layout.last_node else ""
    each = "" if layout.ranks == 1 else " each"
    threads = f", {numbers.plural(layout.threads, 'thread')}{each}"
    gpus = f", {numbers.plural(layout.gpus_per_rank, 'GPU')}{each}" if layout.gpus_per_rank else ""
    return f"{ranks}{threads}{gpus}" + (f", rows {':'.join(map(str, layout.shares))}" if layout.shares else "")


def on_one_machine(runs: Sequence[RunRecord]) -> bool:
    """Tell whether all ranks of all `runs` were on one host."""
    return len({rank.node or rank.host for run in runs for rank in run.ranks}) == 1


def mixtures(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return one sentence for each thing that differs between `runs` and should not."""
    sentences = []
    for name, value in _COMMON:
        found = sorted({str(value(run)) for run in runs if value(run) is not None})
        if len(found) > 1:
            sentences.append(f"The launches differ in {name} ({', '.join(found)}): compare them with care.")
    return tuple(sentences)


def doubts(runs: Sequence[RunRecord], launches: pd.DataFrame) -> tuple[str, ...]:
    """Return one sentence for each circumstance of `runs` (`launches` is their `frames.launch_frame`) that weakens
    their numbers."""
    sentences = []
    lengths = sorted(set(launches["epochs"]))
    if len(lengths) > 1:
        different = ", ".join(map(str, lengths))
        sentences.append(f"The launches differ in the number of epochs ({different}): compare them with care.")
    alone = [run.point.workload.sync == "none" for run in runs]
    differing = [not run.weights.identical and not one for run, one in zip(runs, alone, strict=True)]
    counts = {
        "ran with uncommitted changes: no commit names their code.": sum(run.provenance.dirty for run in runs),
        "ran without synchronisation: a limit of the machine, no training.": sum(alone),
        "summed through Python, several times slower, because no compiler built the native operation: `harness doctor` "
        "says what is missing.": sum(any("numpy_function bridge is in use" in note for note in r.notes) for r in runs),
        DISTURBED: sum(bool(run.met) for run in runs),
        "had ranks whose cores moved nearer or further apart (core to core), so that allreduces had two speeds.": sum(
            run.moved for run in runs
        ),
        "ended with weights that differ between ranks.": sum(differing),
        "ended with a training loss that is not finite.": int(launches["train_loss"].isna().sum()),
        "did not record who waited for whom: all synchronisation counts as wire.": int(
            ((launches["ranks"] > 1) & ~launches["parted"]).sum()
        ),
        "had one epoch only: nothing tells a slow epoch from others.": int((launches["epochs"] < 2).sum()),
    }
    sentences += [f"{_launches(many, len(runs))} {said}" for said, many in counts.items() if many]
    in_turns = launches["run"].isin([run.point.folder for run in runs if run.block])  # go on for their rounds
    brief = int(((launches["trained_s"] < _BRIEF_S) & ~in_turns).sum())
    if brief and not is_script(runs[0].point.workload):
        epochs = math.ceil(_ENOUGH_S / launches["seconds"].min())
        sentences.append(
            f"{_launches(brief, len(runs))} trained for less than {_BRIEF_S:g} s, in which a disturbance weighs much: "
            f"EPOCHS={epochs} makes that {_ENOUGH_S:g} s."
        )
    return tuple(sentences)


def notes(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return every note that a launch or its data carries, once, in order of first appearance."""
    found = [note for run in runs for note in (run.data.note, *run.notes) if note]
    return tuple(dict.fromkeys(found))


def _launches(count: int, total: int) -> str:
    return f"{count} of {total} launches" if total > 1 else "The launch"


def banners(runs: Sequence[RunRecord], launches: pd.DataFrame) -> tuple[Banner, ...]:
    """Return what a reader must know first: synthetic data, held-out rows, mixed records, doubts.

    `launches` (`frames.launch_frame`) may be of more launches than `runs`.
    """
    names = {run.point.folder for run in runs}
    own = launches[launches["run"].isin(names)]
    found = []
    kinds = ((run.data.name, run.data.kind, run.data.held_out, run.point.workload.data_file) for run in runs)
    for data, kind, held_out, file in dict.fromkeys(kinds):
        name = Path(file).name if file else data
        if kind == "synthetic":
            text = (
                f"Synthetic data: a stand-in for {name} with rows of the same shapes. "
                "Times are comparable, accuracy says only that training works."
            )
            found.append(Banner(kind="data", text=text))
        piece = next((partial(run) for run in runs if run.data.name == data), "")
        if kind == "real" and piece:
            text = f"{piece.capitalize()} of {name}: accuracy and the time of an epoch are not those of the whole set."
            found.append(Banner(kind="data", text=text))
        if held_out:
            text = f"The test rows of {name} were held out of its training part: no test part was there."
            found.append(Banner(kind="data", text=text))
    sentences = (*mixtures(runs), *doubts(runs, own))
    return (*found, *(Banner(kind="warning", text=text) for text in sentences))


def sweep_warnings(
    loaded: Loaded, scaling: Scaling | None = None, launches: pd.DataFrame | None = None
) -> tuple[Banner, ...]:
    """Return all that stands before any number of the sweep `loaded`, the most telling first, for every command.

    `launches` is its `frames.launch_frame` where the caller has it.
    """
    launches = launch_frame(loaded.runs, loaded.epochs) if launches is None and loaded.runs else launches
    invalid, every, texts = sum(bool(run.invalid) for run in loaded.runs), len(loaded.runs), []
    high = [one for one in scaling.others if one.efficiency and one.efficiency > DOUBTFUL] if scaling else []
    if high and scaling:  # more speedup than ranks, beyond what the launches' scatter explains
        names = distinct(f"{numbers.ranks(one.ranks)} ({numbers.percent(one.efficiency)})" for one in high)
        texts.append(
            f"Efficiency far above 100 % on {names}, more than caches explain: the launches on "
            f"{numbers.ranks(scaling.base.ranks)} were slowed by something else. Measure them again."
        )
    if 0 < invalid < every:
        reason = main_reason(loaded.runs)
        texts.append(f"{invalid} of {numbers.plural(every, 'launch')} are invalid and left out, mostly: {reason}.")
    if loaded.other_code:
        texts.append(
            f"{numbers.plural(loaded.other_code, 'launch')} of this sweep ran a different code version than the last "
            "command's (of the harness, the script or MODEL, TensorFlow, Keras or MPI) and are left out: `harness "
            "history` and `harness check` compare them."
        )
    if loaded.unwitnessed:
        texts.append(
            "Whether the script trains on several ranks as on one is not known: it takes two launches on one rank "
            "that train to the same numbers (NODES=1,... REPEATS=2, seeds for whatever the script draws)."
        )
    if loaded.untimed_layouts:
        layouts = distinct(map(str, loaded.untimed_layouts))
        texts.append(
            f"No launch on {layouts} has times in turns, so all times are those of whole launches, as they ran: "
            "delete the launches on it and run the sweep again to have all layouts in turns."
        )
    return (
        *(Banner(kind="warning", text=text) for text in texts),
        *(banners(loaded.valid or loaded.runs, launches) if launches is not None else ()),
    )


def main_reason(runs: Sequence[RunRecord]) -> str:
    """Return why most of the invalid ones of `runs`, at least one, are so."""
    reasons = [reason for run in runs for reason in run.invalid[:1]]
    return max(dict.fromkeys(reasons), key=reasons.count)


def data_facts(runs: Sequence[RunRecord], launches: pd.DataFrame) -> tuple[Fact, ...]:
    """Return what was trained on; `launches` is the `launch_frame` of `runs` or of more."""
    data = [run.data for run in runs]
    return facts(
        [
            ("Data set", distinct(data_words(run) for run in fewest_and_most(runs))),
            ("Rows", distinct(f"{numbers.count(d.train_rows)} train, {numbers.count(d.test_rows)} test" for d in data)),
            ("Test rows", distinct("held out of the training part" if d.held_out else "the set's own" for d in data)),
            ("A row", distinct(_row(d) for d in data)),
            ("Input", _input(runs, launches.set_index("run")["step_seconds"])),
            ("Own file", distinct((line for d in data for line in own_file_lines(d)), "; ")),
            ("SHA-256", distinct(d.sha256 for d in data)),
            ("Notes", " ".join(notes(runs))),
        ]
    )


def _row(data: DataRecord) -> str:
    return " x ".join(map(str, data.features)) + f", {data.classes} classes" if data.features else "the script's own"


def _input(runs: Sequence[RunRecord], steps: "pd.Series[float]") -> str:
    """Return where images came from, and what a step would take without decoding them."""
    decoded = [run for run in runs if any(rank.step_without_input_s for rank in run.ranks)]
    if not decoded:
        return "images held in memory" if runs[0].data.name == IMAGENET else ""
    texts = []
    for ranks in sorted({len(run.ranks) for run in decoded}):
        same = [run for run in decoded if len(run.ranks) == ranks]
        step = median(steps[run.point.folder] for run in same)
        free = median(max(rank.step_without_input_s for rank in run.ranks) for run in same)
        share = numbers.percent(max(0.0, 1 - free / step))
        texts.append(f"{numbers.ranks(ranks)}: a step takes {numbers.seconds(step)}, {numbers.seconds(free)} without")
        texts[-1] += f" input, so {share} of it is input"
    return f"images decoded from files; {'; '.join(texts)}"


def workload_facts(workload: Workload, runs: Sequence[RunRecord]) -> tuple[Fact, ...]:
    """Return how the network was trained: every setting of the workload that says something."""
    if is_script(workload):
        return _script_facts(workload, runs)
    parameters = {run.weights.parameters: run.weights.bytes for run in runs}
    return facts(
        [
            ("Workload", f"{workload.name}, preset {workload.preset}"),
            ("Parameters", distinct(f"{numbers.count(n)} ({size / 1e6:.2f} MB)" for n, size in parameters.items())),
            *conditions(workload),
            ("Seeds", _seeds(runs)),
            ("Note", _notes(runs)),
        ]
    )


def _seeds(runs: Sequence[RunRecord]) -> str:
    """Return the seeds of initial weights and order where each repeat had its own."""
    seeds = {run.seed for run in runs if run.seed is not None and run.point.workload.seed is None}
    return f"{numbers.span(min(seeds), max(seeds))}, each repeat its own on every rank count" if seeds else ""


def _script_facts(workload: Workload, runs: Sequence[RunRecord]) -> tuple[Fact, ...]:
    """Return how a user's script was run; what it trains is in the script."""
    script, arguments = script_command(workload)
    return facts(
        [
            ("Script", script.name),
            ("Arguments", shlex.join(arguments)),
            ("Parameters", distinct(numbers.count(run.weights.parameters) for run in runs)),
            ("Rows of a step", distinct(numbers.count(run.global_batch) for run in runs)),
            ("Batch size in the script", "of all ranks" if batch_mode(workload) == "global" else "of each rank"),
            ("Synchronisation", workload.sync),
            ("Note", _notes(runs)),
        ]
    )


def _notes(runs: Sequence[RunRecord]) -> str:
    """Return the reasons given for launches (``NOTE=``)."""
    return distinct((run.point.workload.note for run in runs if run.point.workload.note), "; ")


def machine_facts(runs: Sequence[RunRecord]) -> tuple[Fact, ...]:
    """Return where it ran and with which versions."""
    machines = [run.provenance.machine for run in runs]
    origins = [run.provenance for run in runs]
    return facts(
        [
            ("Machine", distinct(m.hostname for m in machines)),
            ("Placement", distinct((_placement(run) for run in runs), "; ")),
            ("Processor", distinct(f"{m.cpu}, {numbers.plural(m.cores, 'core')}" for m in machines)),
            ("Core to core", _core_ns(runs)),
            ("Memory", distinct(numbers.memory(m.memory_bytes) for m in machines)),
            ("GPUs", distinct(", ".join(m.gpus) or "none" for m in machines)),
            ("System", distinct(m.os for m in machines)),
            ("MPI", distinct(f"{p.mpi_library}, mpi4py {p.mpi4py}" for p in origins)),
            ("Launcher", distinct((p.launcher for p in origins), "; ")),
            ("Reduction", distinct(p.reduction for p in origins)),
            ("TensorFlow", distinct(f"{p.tensorflow}, Keras {p.keras}" for p in origins)),
            ("Python", distinct(f"{p.python}, NumPy {p.numpy}" for p in origins)),
            ("Harness", distinct(f"{p.harness} {p.commit[:12]}{' (changed)' if p.dirty else ''}" for p in origins)),
            ("Environment", distinct(f"{k}={v}" for p in origins for k, v in sorted(p.environment.items()))),
        ]
    )


def _core_ns(runs: Sequence[RunRecord]) -> str:
    """Return what a ping-pong between two cores took."""
    found = sorted(round(ns) for run in runs for ns in run.core_ns if ns)
    return f"{numbers.span(found[0], found[-1], 'ns')} there and back, before launches and behind them" if found else ""


def _placement(run: RunRecord) -> str:
    """Return on which nodes the ranks of a launch were, and on how many cores each might run."""
    nodes = sorted({rank.node or rank.host for rank in run.ranks})
    cores = {len(rank.cores) for rank in run.ranks}
    per_rank = numbers.span(min(cores), max(cores))
    where = f"{numbers.plural(len(run.ranks), 'rank')} on {', '.join(nodes)}"
    return f"{where}, {per_rank} core{'' if per_rank == '1' else 's'} open to each"
