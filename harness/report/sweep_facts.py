"""Lists of facts on launches: where, when and with what they ran, on which data, how they trained, at what cost."""

import shlex
from collections import Counter
from collections.abc import Sequence
from statistics import median

import pandas as pd

from harness.analysis import units
from harness.datasets import own_file_lines
from harness.report.answer import Fact, distinct, facts
from harness.report.run_words import (
    batch_words,
    commit_words,
    cost,
    data_words,
    days,
    fewest_and_most,
    gpu_kinds,
    machines_words,
)
from harness.schema.data_record import DataRecord
from harness.schema.record import Account, Failure, JobUsage, RunRecord
from harness.schema.setting_words import conditions
from harness.schema.workload import IMAGENET, OF_ALL_RANKS, Workload


def run_facts(
    runs: Sequence[RunRecord], every: Sequence[RunRecord], failed: Sequence[Failure] = ()
) -> tuple[Fact, ...]:
    """Return what stands on the first screen: where, when and on what `runs` ran, what they trained, what all cost.

    All are `every` run and those that `failed`.
    """
    return place_facts(
        runs,
        every,
        ("Data", distinct((data_words(run) for run in fewest_and_most(runs)), "; ")),
        ("Training", distinct((_training(run) for run in runs), "; ")),
        ("Batch", "the script's own" if runs[0].point.workload.script else batch_words(runs)),
        ("Check", _replicas(runs)),
        failed=failed,
    )


def _training(run: RunRecord) -> str:
    """Return what was trained, and how, in one line: network, parameters, optimizer, learning rate, epochs."""
    workload = run.point.workload
    parameters = f"{units.count(run.weights.parameters)} parameters"
    if workload.script:
        return f"{workload.script.path.name}, {parameters}"
    how = f"{workload.optimizer}, learning rate {workload.learning_rate:g}, {units.plural(workload.epochs, 'epoch')}"
    return f"{workload.model}, {parameters}; {how}"


def _replicas(runs: Sequence[RunRecord]) -> str:
    """Return in how many launches on several ranks all ranks ended with the same weights; nothing without any."""
    compared = [run for run in runs if len(run.ranks) > 1 and run.point.workload.sync != "none"]
    if not compared:
        return ""
    same = sum(run.weights.identical for run in compared)
    return f"all ranks ended with the same weights, bit for bit, in {same} of {units.plural(len(compared), 'launch')}"


def place_facts(
    runs: Sequence[RunRecord], every: Sequence[RunRecord], *more: tuple[str, object], failed: Sequence[Failure] = ()
) -> tuple[Fact, ...]:
    """Return where, when and on which code `runs` ran, `more` that is known, and what all launches cost."""
    return facts(
        [
            ("Machine", machines_words(run.provenance.machine for run in runs)),
            ("Date", days(run.started for run in runs)),
            *more,
            ("Commit", distinct(commit_words(run.provenance) for run in runs)),
            ("Cost", cost(every, failed)),
        ]
    )


def account_facts(accounts: Sequence[Account]) -> tuple[Fact, ...]:
    """Return what the scheduler's accounting says of the jobs, and of how many it says nothing, and why."""
    jobs = {(account.scheduler, account.job, account.usage): account for account in accounts}.values()
    used = [job.usage for job in jobs if job.usage]
    reasons = Counter(job.missing or "nothing is known yet" for job in jobs if job.usage is None)
    words = [_used(used)] if used else []
    words += [f"none of {units.plural(count, 'job')}: {reason}" for reason, count in reasons.items()]
    return facts([("Accounting", "; ".join(words))])


def _used(used: Sequence[JobUsage]) -> str:
    """Return the sums of what jobs used, and the most memory."""
    largest = max(used, key=lambda usage: usage.memory_bytes or 0)
    memory = "memory not measured"
    if largest.memory_bytes:
        memory = f"memory at most {units.memory(largest.memory_bytes)} in {largest.memory_of}"
    node_hours = units.significant(sum(usage.node_hours for usage in used), 2)
    cpu_seconds = [usage.cpu_s for usage in used if usage.cpu_s]
    joules = [usage.energy_j for usage in used if usage.energy_j]
    kilowatt_hours = units.significant(sum(joules) / 3.6e6, 2)
    return ", ".join(
        [
            f"{node_hours} node-hours of {units.plural(len(used), 'job')}",
            f"CPU time {_sum(units.seconds(sum(cpu_seconds)), len(cpu_seconds), len(used))}",
            memory,
            f"energy {_sum(f'{kilowatt_hours} kWh', len(joules), len(used))}",
        ]
    )


def _sum(text: str, measured: int, jobs: int) -> str:
    """Return a sum, and of how many jobs it is where some were not measured."""
    if not measured:
        return "not measured"
    return text if measured == jobs else f"{text} (of {measured} of them)"


def data_facts(runs: Sequence[RunRecord], launches: pd.DataFrame) -> tuple[Fact, ...]:
    """Return what was trained on; `launches` is the `launch_frame` of `runs` or of more."""
    data = [run.data for run in runs]
    own_file = dict.fromkeys(line for record in data for line in own_file_lines(record))
    return facts(
        [
            ("Data set", distinct(data_words(run) for run in fewest_and_most(runs))),
            ("Samples", distinct(map(_samples, data))),
            ("Test samples", distinct(map(_test_samples, data))),
            ("A sample", distinct(map(_sample, data))),
            ("Input", _input(runs, launches.set_index("run")["step_seconds"])),
            ("Own file", "; ".join(own_file)),
            ("SHA-256", distinct(d.sha256 for d in data)),
            ("Notes", "; ".join(notes(runs))),
        ]
    )


def notes(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return every note that a launch or its data carries, once, in order of first appearance."""
    sentences = (str(note) for run in runs for note in (run.data.note, *run.notes))
    return tuple(dict.fromkeys(filter(None, sentences)))


def _samples(data: DataRecord) -> str:
    return f"{units.count(data.train_rows)} train, {units.count(data.test_rows)} test"


def _test_samples(data: DataRecord) -> str:
    """Return where the test samples are from."""
    if data.held_out:
        return "held out of the training part"
    return "synthetic too" if data.kind == "synthetic" else "the test part of the set"


def _sample(data: DataRecord) -> str:
    return " x ".join(map(str, data.features)) + f", {data.classes} classes" if data.features else "the script's own"


def _input(runs: Sequence[RunRecord], steps: "pd.Series[float]") -> str:
    """Return where images came from, and what a step would take without decoding them."""
    decoded = [run for run in runs if _step_without_input(run)]
    if not decoded:
        return "images held in memory" if runs[0].data.name == IMAGENET else ""
    texts = []
    for ranks in sorted({len(run.ranks) for run in decoded}):
        same = [run for run in decoded if len(run.ranks) == ranks]
        step = median(steps[run.point.folder] for run in same)
        without = median(map(_step_without_input, same))
        share = units.percent(max(0.0, 1 - without / step))
        texts.append(
            f"{units.ranks(ranks)}: a step takes {units.seconds(step)}, {units.seconds(without)} without input, "
            f"so {share} of it is input"
        )
    return f"images decoded from files; {'; '.join(texts)}"


def _step_without_input(run: RunRecord) -> float:
    """Return the seconds of a step that need not wait for input, of the slowest rank."""
    return max(rank.step_without_input_s for rank in run.ranks)


def workload_facts(workload: Workload, runs: Sequence[RunRecord]) -> tuple[Fact, ...]:
    """Return how the network was trained: every setting of the workload that says something."""
    if workload.script:
        batch = "of all ranks" if workload.script.batch == OF_ALL_RANKS else "of each rank"
        return facts(
            [
                ("Script", workload.script.path.name),
                ("Arguments", shlex.join(workload.script.arguments)),
                ("Parameters", distinct(units.count(run.weights.parameters) for run in runs)),
                ("Samples of a step", distinct(units.count(run.global_batch) for run in runs)),
                ("Batch size in the script", batch),
                ("Synchronisation", workload.sync),
                ("Note", _notes(runs)),
            ]
        )
    parameters = {run.weights.parameters: run.weights.bytes for run in runs}
    return facts(
        [
            ("Workload", f"{workload.name}, preset {workload.preset}"),
            (
                "Parameters",
                distinct(f"{units.count(n)} ({size / 1e6:.2f} MB)" for n, size in parameters.items()),
            ),
            *conditions(workload),
            ("Seeds", _seeds(runs)),
            ("Note", _notes(runs)),
        ]
    )


def _seeds(runs: Sequence[RunRecord]) -> str:
    """Return the seeds of initial weights and order where each repeat had its own."""
    seeds = {run.seed for run in runs if run.seed is not None and run.point.workload.seed is None}
    return f"{units.span(min(seeds), max(seeds))}, each repeat its own on every rank count" if seeds else ""


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
            ("CPU", distinct(f"{m.cpu}, {units.plural(m.cores, 'core')}" for m in machines)),
            ("Core to core", _core_ns(runs)),
            ("Memory", distinct(units.memory(m.memory_bytes) for m in machines)),
            ("GPUs", gpu_kinds(machines) or "none"),
            ("GPU software", distinct(f"{k} {v}" for p in origins for k, v in sorted(p.gpu_software.items()))),
            ("System", distinct(m.os for m in machines)),
            ("MPI", distinct(f"{p.mpi_library}, mpi4py {p.mpi4py}" for p in origins)),
            ("Launcher", distinct((p.launcher for p in origins), "; ")),
            ("Start of ranks", _start_of_ranks(runs)),
            ("Reduction", distinct(run.provenance.reduction for run in runs if len(run.ranks) > 1)),
            ("TensorFlow", distinct(f"{p.tensorflow}, Keras {p.keras}" for p in origins)),
            ("Python", distinct(f"{p.python}, NumPy {p.numpy}" for p in origins)),
            ("Harness", distinct(f"{p.harness} {p.commit[:12]}{' (changed)' if p.dirty else ''}" for p in origins)),
            ("Environment", distinct(f"{k}={v}" for p in origins for k, v in sorted(p.environment.items()))),
        ]
    )


def _start_of_ranks(runs: Sequence[RunRecord]) -> str:
    """Return how many launches had ranks that were forked, nothing where none had."""
    forked = sum(run.forked for run in runs)
    if not forked:
        return ""
    launches = f"{units.plural(forked, 'launch')} of {len(runs)}"
    return f"{launches}: ranks forked from a Python that had TensorFlow imported"


def _core_ns(runs: Sequence[RunRecord]) -> str:
    """Return what a ping-pong between two cores took."""
    nanoseconds = sorted(round(ns) for run in runs for ns in run.core_ns if ns)
    if not nanoseconds:
        return ""
    span = units.span(nanoseconds[0], nanoseconds[-1], "ns")
    return f"{span} there and back, before and after launches"


def _placement(run: RunRecord) -> str:
    """Return on which nodes the ranks of a launch were, and on how many cores each was to run."""
    nodes = sorted({rank.node or rank.host for rank in run.ranks})
    cores = {len(rank.cores) for rank in run.ranks}
    per_rank = units.span(min(cores), max(cores))
    where = f"{units.plural(len(run.ranks), 'rank')} on {', '.join(nodes)}"
    return f"{where}, {'each ' if len(run.ranks) > 1 else ''}on {per_rank} core{'' if per_rank == '1' else 's'}"
