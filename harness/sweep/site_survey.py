"""What can be seen of a computing centre from its login node, and the site file that says so."""

import json
import os
import re
import socket
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from harness.base.errors import UserError
from harness.base.processes import run_program
from harness.base.record_words import printable
from harness.comm.mpi_library import mpi_title
from harness.schema.layout import Layout
from harness.sweep.schedulers import choose_scheduler, open_scheduler, scheduler_class
from harness.sweep.site import Partition, Site

_MODULES_LIMIT_S = 60.0
_MODULES = ("bash", "-lc", "module -t avail")
_MPI_MODULE = re.compile(
    r"(?:^|/)(?:cray-mpich|hpcx|i?mpi|intel-?mpi|mpich|mpt|mvapich\d?|openmpi|parastationmpi)(?:/|$)", re.IGNORECASE
)
_MOST_MODULES = 12  # named in a comment
_VIRTUAL = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "tun", "tap", "dummy")
_FAST = ("ib", "hsn")  # InfiniBand and Slingshot
_SCRATCH = ("SCRATCH", "PSCRATCH", "WORK")


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteSurvey:
    """What was seen; empty where nothing was.

    `scheduler` is its name, `host` this machine's name, `launcher` how ranks start there (or why they do not).
    `loaded_modules` are those of this shell, `mpi_modules` those that could be loaded. `interfaces` are network
    interfaces of this machine that are up, the fastest first. `scratch` is the folder that the centre's variable names.
    """

    scheduler: str
    host: str
    partitions: tuple[Partition, ...] = ()
    launcher: str = ""
    loaded_modules: tuple[str, ...] = ()
    mpi_modules: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    scratch: str = ""


def survey_site() -> SiteSurvey:
    """Look at the scheduler, the MPI library, the modules, the network and the scratch folder.

    Raises:
        UserError: a scheduler is here and does not answer.
    """
    name, _ = choose_scheduler("auto", Site())
    name = scheduler_class(name).around or name  # a job around this shell
    speeds = {name: facts.speed for name, facts in psutil.net_if_stats().items() if facts.isup}
    to_others = [name for name in speeds if not name.startswith(_VIRTUAL)]
    modules = run_program(_MODULES, limit_s=_MODULES_LIMIT_S)
    try:
        scheduler = open_scheduler(name)
        partitions = scheduler.partitions()
        program, *options = scheduler.launcher(Layout(nodes=2)).words
        how = f"{program} {options[0]}" if program in ("srun", "flux") else Path(program).name
        launcher = f"{how}, of {mpi_title() or 'an MPI library that does not say its name'}"
    except UserError as error:  # no MPI library, which the local scheduler needs too
        partitions = ()
        launcher = f"not known: {error}"
    return SiteSurvey(
        scheduler=name,
        host=socket.gethostname(),
        partitions=partitions,
        launcher=launcher,
        loaded_modules=tuple(filter(None, os.environ.get("LOADEDMODULES", "").split(":"))),
        mpi_modules=read_mpi_modules(modules.out + modules.err),
        interfaces=tuple(sorted(to_others, key=lambda name: (not name.startswith(_FAST), -speeds[name], name))),
        scratch=next((os.environ[name] for name in _SCRATCH if os.environ.get(name)), ""),
    )


def read_mpi_modules(answer: str) -> tuple[str, ...]:
    """Return the modules of MPI libraries among those of ``module -t avail``, as they are loaded."""
    names = (line.strip().removesuffix("(default)").removesuffix("<default>") for line in answer.splitlines())
    modules = (name for name in names if name and not name.endswith((":", "/")) and " " not in name)
    return tuple(dict.fromkeys(name for name in modules if _MPI_MODULE.search(name)))


def site_file_text(survey: SiteSurvey) -> str:
    """Return the text of a site file with what `survey` saw, and a line to fill in for what it did not."""
    hosts = (re.sub(r"\d+", "[0-9]*", survey.host),) if survey.host else ()
    lines = [
        f"# A computing centre's facts, as `harness site init` saw them on {printable(survey.host)}.",
        "# A line that begins with # states nothing: fill it in and take the # away, or leave it out.",
        _line("scheduler", survey.scheduler, "where jobs go: slurm, pbs, flux or local"),
        _line("hosts", hosts, "the site is chosen by itself on machines of these names"),
        _modules_line(survey),
        _network_line(survey),
        _line(
            "scratch",
            survey.scratch or "/scratch",
            "TMPDIR of the ranks: a folder that every node has, best a disk of its own",
            stated=False,
        ),
        "",
        "[request]",
        _line("launcher", "auto", f"how ranks start; auto is {survey.launcher or 'not known'}"),
        _line("account", "project1", "who pays, where the centre asks for it", stated=False),
    ]
    named = [partition for partition in survey.partitions if partition.default]
    largest = sorted(survey.partitions, key=lambda partition: partition.nodes or 0)[-1:]
    named += [partition for partition in largest if partition not in named]
    others = [partition.name for partition in survey.partitions if partition not in named]
    if survey.scheduler != "local":
        names = ", ".join(partition.name for partition in survey.partitions) or "not known"
        remark = f"instead of the default one; there are {names}"
        lines.append(_line("partition", next(iter(others), "standard"), remark, stated=False))
    for partition in named:
        lines += ["", *_partition_lines(partition)]
    return "\n".join(lines) + "\n"


def _modules_line(survey: SiteSurvey) -> str:
    if survey.loaded_modules:
        return _line("modules", survey.loaded_modules, "loaded before the ranks start: those of this shell")
    if survey.mpi_modules:
        seen = ", ".join(survey.mpi_modules[:_MOST_MODULES])
        more = f" and {len(survey.mpi_modules) - _MOST_MODULES} more" if survey.mpi_modules[_MOST_MODULES:] else ""
        remark = f"loaded before the ranks start, for --mpi system; no module is loaded here, there are {seen}{more}"
        return _line("modules", survey.mpi_modules[:1], remark, stated=False)
    remark = "loaded before the ranks start; `module -t avail` names no MPI here"
    return _line("modules", ("openmpi/5",), remark, stated=False)


def _network_line(survey: SiteSurvey) -> str:
    seen = ", ".join(survey.interfaces) or "none"
    name = survey.interfaces[0] if survey.interfaces else "ib0"
    remark = f"the interface that MPI uses over TCP, of this name on all nodes; up on this machine: {seen}"
    return _line("network", name, remark, stated=name.startswith(_FAST) and bool(survey.interfaces))


_OF_A_NODE = {
    "cores_per_node": "on a node, `lscpu` says it",
    "numa_domains": "of a node; `lscpu` there says it: NUMA node(s)",
    "gpus_per_node": "on a node, `nvidia-smi -L` says it",
    "memory_mb": "of a node",
    "walltime": "the longest that a job may take; without it there is no limit",
}


def _partition_lines(partition: Partition) -> list[str]:
    """Return the table of a partition; what is not known of it is left to fill in."""
    lines = ["[[partition]]"]
    for field in fields(Partition):
        value = getattr(partition, field.name)
        if value is None:
            example = "24:00:00" if field.name == "walltime" else 1
            lines.append(_line(field.name, example, _OF_A_NODE.get(field.name, "not known"), stated=False))
        elif value is not False:
            lines.append(_line(field.name, value))
    return lines


def _line(name: str, value: object, remark: str = "", *, stated: bool = True) -> str:
    """Return a line of TOML; what is not `stated` is behind a #."""
    # Texts, lists of texts, whole numbers and true are written as in JSON.
    text = json.dumps(value, ensure_ascii=False)
    line = f"{'' if stated else '# '}{name} = {text}"
    return f"{line}  # {' '.join(printable(remark).split())}" if remark else line
