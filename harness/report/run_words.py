"""Launches in a reader's words: their machine, commit, days, layout, data, settings and cost, each as one text."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from harness.analysis import units
from harness.base.provenance import Machine
from harness.datasets import dataset_info, dataset_names
from harness.schema.layout import Layout
from harness.schema.message_cost import Probe
from harness.schema.record import Failure, Provenance, RunRecord
from harness.schema.setting_words import conditions
from harness.schema.workload import Workload

if TYPE_CHECKING:
    from harness.bench.bench_record import BenchRecord

_DAY_S = 86_400.0


def machine_words(machine: Machine) -> str:
    """Return a machine in one line: its name, processor, cores, memory and GPUs."""
    gpus = f", {units.plural(len(machine.gpus), 'GPU')}" if machine.gpus else ""
    memory = units.memory(machine.memory_bytes)
    return f"{machine.hostname}: {machine.cpu}, {units.plural(machine.cores, 'core')}, {memory}{gpus}"


def machines_words(machines: Iterable[Machine]) -> str:
    """Return several launches' machines, each once, also one whose launches had different numbers of GPUs."""
    counts: dict[str, list[int]] = {}
    for machine in machines:
        counts.setdefault(machine_words(replace(machine, gpus=())), []).append(len(machine.gpus))
    lines = []
    for words, gpus in counts.items():
        span = units.span(min(gpus), max(gpus))
        lines.append(f"{words}, {span} GPU{'' if span == '1' else 's'}" if max(gpus) else words)
    return "; ".join(lines)


def gpu_kinds(machines: Iterable[Machine]) -> str:
    """Return which GPUs the ranks of each launch's first host had, and how many of each kind; empty without one."""
    counts: dict[str, list[int]] = {}
    for machine in machines:
        for gpu, count in Counter(machine.gpus).items():
            counts.setdefault(gpu, []).append(count)
    return "; ".join(f"{units.span(min(of_kind), max(of_kind))} x {gpu}" for gpu, of_kind in counts.items())


def commit_words(origin: "Provenance | Probe | BenchRecord") -> str:
    """Return the commit that ran, and that files differed from it where they did."""
    return f"{origin.commit[:12] or 'no checkout'}{', with uncommitted changes' if origin.dirty else ''}"


def days(moments: Iterable[datetime]) -> str:
    """Return from when to when something was measured, in UTC: ``2026-01-05 12:00 to 12:40 UTC``."""
    in_order = sorted(moment.astimezone(UTC) for moment in moments)
    first = in_order[0]
    last = in_order[-1]
    begin = f"{first:%Y-%m-%d %H:%M}"
    end = f"{last:%Y-%m-%d %H:%M}"
    if begin == end:
        return f"{begin} UTC"
    if first.date() == last.date():
        end = f"{last:%H:%M}"
    return f"{begin} to {end} UTC"


def cost(runs: Sequence[RunRecord], failed: Sequence[Failure] = ()) -> str:
    """Return the core-hours of `runs`, invalid ones too, and of launches that `failed` or were stopped.

    A launch counts from the start of each rank's process to its record, one that failed as long as it had this
    machine's cores. Launches of one interleaved block share its cores while they last. A point with several records was
    launched again, as its times were not valid.
    """
    cores: dict[object, int] = {}
    seconds: dict[object, float] = {}
    for run in runs:
        block = (run.point.workload, run.point.code, run.block) if run.block else id(run)
        lasted = (run.ended - run.launched).total_seconds()
        cores[block] = max(cores.get(block, 0), run.point.layout.cores)
        seconds[block] = max(seconds.get(block, 0.0), lasted)
    core_seconds = sum(cores[block] * seconds[block] for block in cores)
    core_seconds += sum(failure.point.layout.cores * failure.seconds for failure in failed)
    replaced = len(runs) - len({run.point.key for run in runs})
    launches = units.plural(len(runs), "launch")
    launches += f", {replaced} of them replaced" if replaced else ""
    launches += f", and {len(failed)} cut short" if failed else ""
    lasted = _DAY_S
    if runs:
        lasted = (max(run.ended for run in runs) - min(run.launched for run in runs)).total_seconds()
    if lasted < _DAY_S:
        launches += f", {units.seconds(lasted)} from the start of the first to the end of the last"
    return f"{core_hours(core_seconds)} in {launches}"


def core_hours(seconds: float) -> str:
    """Return seconds of one core in words."""
    return f"{units.significant(seconds / 3600, 2)} core-hours"


def data_words(run: RunRecord) -> str:
    """Return what a launch was trained on, and which part of it where a piece stands in for the whole."""
    data = run.data
    workload = run.point.workload
    if workload.script:
        return "the script's own"
    name = data.name
    if workload.own_file:
        name = workload.own_file.name
    elif name in dataset_names():
        name = dataset_info(name).title
    if data.kind == "synthetic":
        return f"{units.count(trained_rows(run))} synthetic training samples in the shape of {name}"
    return f"{name}, {partial(run) or f'all {units.count(trained_rows(run))} training samples'}"


def trained_rows(run: RunRecord) -> int:
    """Return the training rows that the ranks of a launch were given, all together."""
    return sum(rank.rows for rank in run.ranks)


def partial(run: RunRecord) -> str:
    """Return ``partial: 8,000 of 10,900,000 training samples`` where real data is cut, else nothing."""
    data = run.data
    if data.kind != "real" or run.point.workload.script:
        return ""
    all_rows = data.train_rows
    if data.name in dataset_names():
        all_rows = max(all_rows, dataset_info(data.name).train_rows)
    if trained_rows(run) >= 0.99 * all_rows:  # rows that fill no batch on every rank are no piece
        return ""
    return f"partial: {units.count(trained_rows(run))} of {units.count(all_rows)} training samples"


def batch_words(runs: Sequence[RunRecord]) -> str:
    """Return the samples of a step: ``per rank 64, global 64 on 1 rank and 128 on 2 ranks``."""
    per_rank = _on_ranks(runs, lambda run: [rank.batch for rank in run.ranks])
    return f"per rank {per_rank}, global {_on_ranks(runs, lambda run: [run.global_batch])}"


def _on_ranks(runs: Sequence[RunRecord], values: Callable[[RunRecord], Sequence[int]]) -> str:
    """Return the `values` of the launches on the fewest and on the most ranks, once where all are the same."""
    by_ranks: dict[int, list[int]] = {}
    for run in sorted(runs, key=lambda run: len(run.ranks)):
        by_ranks.setdefault(len(run.ranks), []).extend(values(run))
    every = [value for of_count in by_ranks.values() for value in of_count]
    if len(by_ranks) == 1 or len(set(every)) == 1:
        return units.span(min(every), max(every))
    counts = list(by_ranks)
    ends = (f"{units.span(min(by_ranks[n]), max(by_ranks[n]))} on {units.ranks(n)}" for n in (counts[0], counts[-1]))
    return (" and " if len(counts) == 2 else " to ").join(ends)


def fewest_and_most(runs: Sequence[RunRecord]) -> Sequence[RunRecord]:
    """Return the runs of the least and of the most rows: all that weak scaling needs told."""
    ordered = sorted(runs, key=trained_rows)
    return (ordered[0], ordered[-1])


def layout_words(layout: Layout, one_machine: bool) -> str:
    """Return where a launch ran: ``2 ranks``, ``2 nodes × 4 ranks, 2 threads each``; on one machine without nodes."""
    ranks = units.ranks(layout.ranks)
    if not one_machine:
        ranks = f"{units.plural(layout.nodes, 'node')} × {units.ranks(layout.ranks_per_node)}"
        ranks += f" ({layout.last_node} on the last)" if layout.last_node else ""
    per_rank = "" if layout.ranks == 1 else " each"
    words = f"{ranks}, {units.plural(layout.threads, 'thread')}{per_rank}"
    if layout.gpus_per_rank:
        words += f", {units.plural(layout.gpus_per_rank, 'GPU')}{per_rank}"
    return words


def on_one_machine(runs: Sequence[RunRecord]) -> bool:
    """Return whether all ranks of all `runs` were on one host."""
    return len({rank.node or rank.host for run in runs for rank in run.ranks}) == 1


def settings_words(workload: Workload) -> list[str]:
    """Return every setting that says something: ``learning rate: 0.1``; a script has its own."""
    if workload.script:
        return ["settings in the script"]
    return [f"{name}: {value}" for name, value in conditions(workload)]
