"""A site file against the live system."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from harness.sweep.schedulers import slurm
from harness.sweep.schedulers.commands import Commands, choose
from harness.sweep.schedulers.pbs import read_nodes
from harness.sweep.site import Partition, Site


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One statement and whether it holds."""

    good: bool
    text: str


def check(site: Site) -> tuple[Finding, ...]:
    """Return what the scheduler here says to the statements of `site`.

    Raises:
        UserError: the scheduler does not answer.
    """
    name, why = choose(site.scheduler, site)
    found = [Finding(good=True, text=f"site {site.name}: {why}")]
    commands = Commands()
    if name == "slurm":
        found += _slurm(site, commands)
    elif name == "pbs":
        found += _pbs(site, commands)
    elif site.partition:
        found.append(Finding(good=False, text="partitions are stated, and there is no scheduler here"))
    return tuple(found)


def _slurm(site: Site, commands: Commands) -> Iterator[Finding]:
    answer = commands.run(("sinfo", "--noheader", "-o", slurm.PARTITION_FIELDS))
    live = {partition.name: partition for partition in slurm.read_partitions(answer)}
    for stated in site.partition or live.values():
        yield from _partition(stated, live.get(stated.name), live)
    yield from _named(site.request.partition, live)
    settings = commands.run(("scontrol", "show", "config"))
    if "EnforcePartLimits" in settings and "EnforcePartLimits       = NO" in settings:
        yield Finding(good=True, text="note: EnforcePartLimits=NO, Slurm lets jobs that can never run wait for ever")
    accounting = "accounting_storage/none" not in settings
    yield Finding(good=True, text=f"accounting: {'sacct' if accounting else 'none, exit files stand in for it'}")
    launcher = site.request.launcher
    if launcher.startswith("srun"):
        kinds = commands.ask(("srun", "--mpi=list"))
        kind = launcher.partition("=")[2]
        yield Finding(good=kind in (kinds.stdout + kinds.stderr).split(), text=f"launcher {launcher}: srun has {kind}")


def _pbs(site: Site, commands: Commands) -> Iterator[Finding]:
    limit, ill = read_nodes(commands.run(("pbsnodes", "-a", "-F", "json")))
    for sentence in ill.values():
        yield Finding(good=True, text=f"note: {sentence}")
    if limit is not None:
        text = f"{limit.nodes} nodes, {limit.cores_per_node} cores and {limit.gpus_per_node} GPUs a node"
        yield Finding(good=True, text=f"pbsnodes: {text}")
    for stated in site.partition:
        there = commands.ask(("qstat", "-Q", "-f", stated.name))
        yield Finding(good=not there.returncode, text=f"queue {stated.name} exists")
        if limit is not None:
            for field in ("nodes", "cores_per_node", "gpus_per_node"):
                yield from _not_more(stated, field, getattr(limit, field))
    tmrsh = shutil.which("pbs_tmrsh")
    yield Finding(
        good=True, text=f"ranks on other nodes start through {tmrsh or 'pbs_tmrsh where the job finds it, or ssh'}"
    )


def _partition(stated: Partition, live: Partition | None, known: dict[str, Partition]) -> Iterator[Finding]:
    if live is None:
        yield Finding(good=False, text=f"partition {stated.name}: there is none, known are {', '.join(known)}")
        return
    yield Finding(good=True, text=f"partition {stated.name} exists")
    for field in ("nodes", "cores_per_node", "gpus_per_node", "memory_mb"):
        yield from _not_more(stated, field, getattr(live, field))
    if stated.walltime is not None:
        yield Finding(
            good=stated.walltime == live.walltime,
            text=f"partition {stated.name}: walltime {stated.walltime}, Slurm says {live.walltime or 'no limit'}",
        )


def _not_more(stated: Partition, field: str, there: int | None) -> Iterator[Finding]:
    value = getattr(stated, field)
    if value is None:
        return
    words = field.replace("_", " ")
    yield Finding(good=there is None or value <= there, text=f"{stated.name}: {words} {value}, there are {there}")


def _named(partition: str, live: dict[str, Partition]) -> Iterator[Finding]:
    if partition:
        yield Finding(good=partition in live, text=f"default partition {partition} exists")
