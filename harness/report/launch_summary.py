"""Launches in a reader's words: where and when they ran, on which part of which data, on what layout, at what cost."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis import numbers
from harness.base.provenance import Machine
from harness.datasets import info, names
from harness.report.answer import Fact, distinct, facts
from harness.schema.message_cost import Probe
from harness.schema.record import Provenance, RunRecord
from harness.schema.sweep import Account, Failure, JobUsage, Layout
from harness.schema.workload import is_script

if TYPE_CHECKING:
    from harness.bench.bench_record import BenchRecord


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
    runs: Sequence[RunRecord],
    every: Sequence[RunRecord],
    *beside: tuple[str, object],
    failed: Sequence[Failure] = (),
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
