"""How ranks are started inside a job: srun with a PMI, or the MPI library's own mpirun."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.comm.harness_variables import mpi_choice
from harness.comm.mpi_library import AS_ROOT, Family, find_mpi, mpi4py_variables
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.workload import survives
from harness.sweep.site import Site

# What the user set for the harness in his shell; a job's shell may start without it.
_OURS = ("HARNESS_CACHE_DIR", "HARNESS_DATA_DIR", "HARNESS_OVERLAP", "HARNESS_REDUCTION")
_SLURM = ("slurm", "inside")  # schedulers by whose srun ranks and Hydra's daemons start
_OF_INTEL = ("I_MPI_PMI", "I_MPI_PMI_LIBRARY")  # how Intel's library finds its ranks under srun


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchCommand:
    """The command that starts the ranks of a layout inside a job.

    In a shared allocation it is followed by `node_option` and the names of the nodes, each with `node_suffix`.
    """

    words: tuple[str, ...]
    node_option: str = ""
    node_suffix: str = ""


def srun(layout: Layout, kind: str, site: Site) -> LaunchCommand:
    """Return `kind` (``srun --mpi=pmix``) with the tasks of `layout`."""
    words = [*kind.split(), f"--nodes={layout.nodes}", f"--ntasks={layout.ranks}"]
    words += [f"--ntasks-per-node={layout.ranks_per_node}", f"--cpus-per-task={layout.threads}"]
    if layout.last_node:
        # Slurm would deal the ranks out evenly; the nodes before the last are to be full.
        words.append(f"--distribution=plane={layout.ranks_per_node}")
    if layout.gpus_per_rank:
        # For the node: with --gpus-per-task a rank could not reach another one's GPU directly.
        words.append(f"--gpus-per-node={layout.gpus_per_rank * layout.ranks_per_node}")
    words.append(f"--cpu-bind={'cores' if site.binding == 'cores' else 'none'}")
    # Without --kill-on-bad-exit the other ranks wait for a dead one until the time limit.
    words.append("--kill-on-bad-exit=1")
    return LaunchCommand(words=(*words, *site.launcher_options), node_option="--nodelist")


def mpirun_words(
    program: Path,
    family: Family,
    ranks: int,
    *,
    per_node: int | None = None,
    threads: int | None = 1,
    oversubscribe: bool = False,
) -> tuple[str, ...]:
    """Return the words by which mpirun `program` of a `family` starts `ranks` ranks, `per_node` on each of the nodes.

    Each is bound to `threads` cores, or with None to none, as are more ranks than there are cores (`oversubscribe`).
    """
    words = [str(program), "-n", str(ranks)]
    if oversubscribe:
        threads = None
    if family is not Family.OPEN_MPI:  # by Hydra
        words += ["-ppn", str(per_node)] if per_node else []
        if family is Family.INTEL:  # its Hydra ignores -bind-to, with a remark
            pins = ("I_MPI_PIN_CELL", "core", "-genv", "I_MPI_PIN_DOMAIN", str(threads))
            return (*words, "-genv", *(pins if threads else ("I_MPI_PIN", "off")))
        return (*words, "-bind-to", f"core:{threads}" if threads else "none")
    place = ""
    if oversubscribe:
        place = ":OVERSUBSCRIBE"
    elif per_node:
        place = f"ppr:{per_node}:node"
    elif threads:
        place = "slot"
    if place:
        words += ["--map-by", f"{place}:PE={threads}" if threads else place]
    return (*words, "--bind-to", "core" if threads else "none")


def mpirun(layout: Layout, site: Site, agent: str | None = None) -> LaunchCommand:
    """Return mpirun of Open MPI, MPICH or Intel for `layout`; `agent` starts Open MPI's daemons on other nodes."""
    mpi = find_mpi()
    threads = layout.threads if site.binding == "cores" else None
    words = mpirun_words(mpi.mpirun, mpi.family, layout.ranks, per_node=layout.ranks_per_node, threads=threads)
    if mpi.family is not Family.OPEN_MPI:
        return LaunchCommand(words=(*words, *site.launcher_options), node_option="-hosts")
    if agent:
        # Open MPI's daemons must keep the session: pbs_tmrsh ends what has detached itself.
        words += ("--prtemca", "plm_ssh_agent", agent, "--leave-session-attached")
    slots = f":{layout.ranks_per_node * layout.threads}"
    return LaunchCommand(words=(*words, *site.launcher_options), node_option="--host", node_suffix=slots)


def surviving(command: LaunchCommand, point: Point) -> LaunchCommand:
    """Return `command` such that a rank that fails does not end all where the workload asks for that.

    Raises:
        UserError: the ranks are not started by Open MPI's mpirun.
    """
    workload = point.workload
    if not survives(workload):
        return command
    program, *words = command.words
    if Path(program).name != "mpirun" or find_mpi().family is not Family.OPEN_MPI:
        on_failure = setting("on_failure", workload.on_failure)
        raise UserError(
            f"{on_failure} needs the mpirun of Open MPI 5, but {program} starts the ranks here: use "
            f"{setting('launcher', 'mpirun')} with it, or {setting('on_failure', 'abort')}"
        )
    return replace(command, words=(program, "--with-ft", "ulfm", *words))


def rank_environment(site: Site, scheduler: str) -> Mapping[str, str | None]:
    """Return what the ranks of a batch job need exported, None for unset."""
    mpi = find_mpi()
    variables: dict[str, str | None] = {name: os.environ[name] for name in _OURS if os.environ.get(name)}
    variables |= {"HARNESS_MPI": mpi_choice(), "HARNESS_SCHEDULER": scheduler}
    variables |= mpi4py_variables(mpi)
    if mpi.family is Family.OPEN_MPI:
        if os.geteuid() == 0:
            variables |= AS_ROOT
        if site.network:
            variables |= {"OMPI_MCA_btl_tcp_if_include": site.network, "PRTE_MCA_oob_tcp_if_include": site.network}
        if site.binding == "none":
            # Ranks that are not bound may share cores, and a rank that spins would keep the others waiting.
            variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    elif site.network:
        variables["FI_TCP_IFACE"] = site.network
    if mpi.family is Family.INTEL and scheduler in _SLURM:
        variables["I_MPI_HYDRA_BOOTSTRAP"] = "slurm"  # as Intel's mpirun sets it for mpiexec.hydra
        variables |= {name: os.environ[name] for name in _OF_INTEL if os.environ.get(name)}
    if site.scratch:
        variables["TMPDIR"] = site.scratch
    return variables | site.environment


# What launches and their launchers print: the last of it, and the line that says what went wrong.

_READ_BYTES = 1_000_000
_HARNESS_LINE = re.compile(r"harness: (?P<reason>.+)")
_EXCEPTION = re.compile(r"(?P<reason>(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)")
_LIBRARY_LOG = re.compile(r"[IWE]\d{4,} |WARNING: ")  # TensorFlow's own remarks, which a good run makes as well
_SIGNAL = re.compile(r"\[[^\]]+\] Signal: (?P<reason>.+)")  # Open MPI's own handler, above a stack
_CALL = re.compile(r"\(P(?P<call>MPI_\w+)\+")
_OTHER = re.compile(r"(?P<reason>.*\b(?:error|fail\w*|killed|cannot|unable|no such|not found)\b.*)", re.IGNORECASE)


def read_output(log: Path) -> str:
    """Return the last megabyte of a log; launchers write NUL bytes and cut characters into it."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _READ_BYTES))
            content = file.read()
    except OSError:
        return ""
    return content.replace(b"\0", b"").decode(errors="replace")


def first_error(output: str) -> str | None:
    """Return the first error line: the harness's own sentence, else an exception's, else what looks like one.

    Of a crash inside of MPI it names the call too.
    """
    lines = [line.strip() for line in output.splitlines() if not _LIBRARY_LOG.match(line)]
    for pattern in (_HARNESS_LINE, _EXCEPTION, _SIGNAL, _OTHER):
        for line in lines:
            match = pattern.match(line)
            if match:
                call = _CALL.search(output) if pattern is _SIGNAL else None
                return match["reason"] + (f" in {call['call']}" if call else "")
    return None
