"""Two nodes of a cluster: the doctor's checks on each, and a sum over both, in one short job."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import resource, write_atomic
from harness.base.processes import Reply, run_program
from harness.base.setting_names import setting
from harness.doctor.all_checks import OPERATION, PROBLEM, Diagnostic, check_world, ok, problem
from harness.schema.layout import Layout
from harness.schema.sweep_folder import make_results
from harness.sweep.job_nodes import current_allocation
from harness.sweep.job_script import TEMPLATES, JobScript, check_directives, render_script
from harness.sweep.launch_command import first_error, read_output
from harness.sweep.plan import Axes, combine, fill_nodes
from harness.sweep.scheduler_answers import State
from harness.sweep.schedulers import Scheduler, choose_scheduler, open_scheduler, scheduler_class
from harness.sweep.site import Site, refuse_recorded_secrets, walltime_seconds

_NODES = 2
_WALLTIME = "0:10:00"
_NODE_CHECK_S = 240  # TensorFlow is read from a cold file system, and the operation may have to be compiled
_ARRIVAL_S = 30.0  # until a file that a node wrote is seen here
_BOTH = "both"
_SUM = "sum over 2 nodes"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCheck:
    """What was found on `node`, or between the nodes."""

    node: str
    check: Diagnostic


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterJob:
    """The job of a check, called `name` in the queue: its files are in `folder`, its ranks are of `layout`."""

    scheduler: Scheduler
    layout: Layout
    folder: Path
    name: str
    tasks: int = 0

    @property
    def script(self) -> Path:
        """The script that is run."""
        return self.folder / "check.sh"

    @property
    def log(self) -> Path:
        """The file that takes the output of the script."""
        return self.folder / "job.out"

    @property
    def end(self) -> Path:
        """The file that the script writes last: the exit code of the sum."""
        return self.folder / "sum.exit"


def check_cluster(site: Site, results: Path, *, limit_s: float, say: Say) -> tuple[NodeCheck, ...]:
    """Run the check on two nodes of `site`, and return what was found, in the order of the checks.

    The job is waited for during `limit_s` seconds, in the queue and running; then, and on Ctrl-C, it is cancelled.
    Inside an allocation of several nodes it runs there.

    Raises:
        UserError: no scheduler is here, it takes no such job, or `results` cannot be written to.
    """
    scheduler, is_inside = _open_scheduler(site)
    check = _write_job(scheduler, _new_folder(results), is_inside=is_inside)
    say(f"{check.script}: {check.layout}, at most {_WALLTIME}")
    if is_inside:
        reply = run_program(["bash", str(check.script)], limit_s=min(limit_s, walltime_seconds(_WALLTIME)))
        state = State(phase="ended" if reply.code is not None else "running", exit_code=reply.code)
        write_atomic(scheduler.output(check.folder, "inside"), reply.out + reply.err)
        jobs: tuple[str, ...] = ("inside",)
    else:
        state, jobs = _wait_for_job(check, limit_s, say)
    return merge_nodes(_read_checks(check, state, jobs, limit_s))


def _open_scheduler(site: Site) -> tuple[Scheduler, bool]:
    """Return the scheduler that has the nodes, and whether this process is inside an allocation of several of them.

    Raises:
        UserError: there is none, or a partition of fewer nodes.
    """
    name, _ = choose_scheduler("auto", site)
    allocation = current_allocation()
    is_inside = allocation is not None and len(allocation.nodes) >= _NODES
    if allocation is not None and is_inside and name == "local":  # whose nodes have no command that submits
        name = allocation.scheduler.lower()
    if name == "local":
        raise UserError(
            f"{setting('cluster', True)} needs Slurm, PBS or Flux, and none is here: leave it out to check this machine"
        )
    request = replace(scheduler_class(name).suitable(site.request), mode="jobs", walltime=_WALLTIME, container="")
    refuse_recorded_secrets(site, request)
    scheduler = open_scheduler(name, site=site, request=request)
    refusal = scheduler.refusal(Layout(nodes=_NODES))
    if refusal is not None:
        refused = f"{setting('cluster', True)} {refusal}"
        raise UserError(f"{refused}: name another partition in a site file ({setting('site')})")
    return scheduler, is_inside


def _new_folder(results: Path) -> Path:
    """Make a folder for the files of a check, which the nodes have to see."""
    make_results(results)
    folder = (results / "doctor" / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}").resolve()
    folder.mkdir(parents=True)
    return folder


def _write_job(scheduler: Scheduler, folder: Path, *, is_inside: bool) -> ClusterJob:
    """Write the script of the check to `folder`: with the ranks of a sweep, or inside an allocation one a node."""
    layout = Layout(nodes=_NODES)
    if not is_inside:
        limit = scheduler.limit()
        (layout, *_), _ = combine(fill_nodes(Axes(nodes=(_NODES,), threads=()), limit), limit)
    check = ClusterJob(scheduler=scheduler, layout=layout, folder=folder, name=f"doctor-{os.getpid()}")
    script = JobScript(
        name=check.name,
        title="harness doctor --cluster",
        version=__version__,
        script_name=check.script.name,
        workdir=str(Path.cwd()),
        layout=layout,
        check_words=scheduler.launcher(layout).words,
        environment=scheduler.environment(layout),
        python=sys.executable,
        jobs=str(folder),
        logs=str(folder),
        data_dir=None,
        mode="check",
        node_check=scheduler.node_check(layout),
        node_check_s=_NODE_CHECK_S,
        walltime=_WALLTIME,
        request=scheduler.request,
        site=scheduler.site,
    )
    text = render_script(scheduler.template, script, scheduler.path)
    check_directives(text, scheduler, scheduler.template)
    for helper in scheduler.helpers(layout):
        write_atomic(folder / helper, (resource(TEMPLATES) / helper).read_text())
        (folder / helper).chmod(0o755)
    write_atomic(check.script, text)
    return check


def _wait_for_job(check: ClusterJob, limit_s: float, say: Say) -> tuple[State, tuple[str, ...]]:
    """Submit the job, wait until it has ended, and return its state and identifiers; one that has not is cancelled."""
    scheduler = check.scheduler
    jobs: tuple[str, ...] = ()
    state = State(phase="unknown")
    begin = time.monotonic()
    last_line = ""
    try:
        jobs = scheduler.submit(check)
        while state.phase != "ended" and time.monotonic() - begin < limit_s:
            time.sleep(scheduler.poll_s)
            state = scheduler.poll(jobs)[jobs[0]]
            if state.phase == "unknown" and check.end.exists():  # PBS without job history
                state = State(phase="ended", exit_code=0)
            line = f"job {jobs[0]}: {_phase(state)}"
            if line != last_line:
                say(line)
                last_line = line
        return state, jobs
    finally:
        if state.phase != "ended":
            left = jobs
            with contextlib.suppress(UserError):  # the error that led here is told
                left = jobs or tuple(scheduler.find([check.name]).values())
            scheduler.cancel(left)


def _phase(state: State) -> str:
    return ", ".join(filter(None, (state.phase, state.word, state.reason, state.nodes)))


def _read_checks(check: ClusterJob, state: State, jobs: Sequence[str], limit_s: float) -> Iterator[NodeCheck]:
    """Yield what the job said of itself, its nodes and the sum."""
    until = time.monotonic() + _ARRIVAL_S
    while state.phase == "ended" and not check.end.exists() and time.monotonic() < until:
        time.sleep(0.1)
    yield NodeCheck(node=_BOTH, check=_check_job(check, state, jobs, limit_s))
    logs = sorted(check.folder.glob("*.log"))
    for log in logs:
        for diagnostic in read_node(log):
            yield NodeCheck(node=log.stem, check=diagnostic)
    if check.end.exists():
        yield NodeCheck(node=_BOTH, check=_check_sum(check))


def _check_job(check: ClusterJob, state: State, jobs: Sequence[str], limit_s: float) -> Diagnostic:
    """Return whether the job came to its end."""
    if check.end.exists():
        return ok("job", f"{check.layout}, on {check.scheduler.title}")
    if state.phase != "ended":
        finding = f"{_phase(state)} after {limit_s / 60:g} minutes, and cancelled"
        return problem(
            "job", finding, f"wait longer with {setting('limit')}, or name a partition with free nodes in a site file"
        )
    output = read_output(check.scheduler.output(check.folder, jobs[0]))
    finding = first_error(output) or check.scheduler.explain(state)
    return problem("job", finding, f"what it wrote is in {check.folder}, which the nodes must see")


def read_node(log: Path) -> Iterator[Diagnostic]:
    """Yield the checks of a node: they are in a file beside its `log`, one in a line."""
    try:
        lines = log.with_suffix(".json").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    diagnostics = [diagnostic for line in lines if (diagnostic := _read_line(line)) is not None]
    yield from diagnostics
    if not diagnostics or diagnostics[-1].topic != OPERATION:
        error = first_error(read_output(log)) or f"it said nothing within {_NODE_CHECK_S} s"
        yield problem("doctor", error, f"see {log}")


def _read_line(line: str) -> Diagnostic | None:
    """Return the check of a line, None for what a program wrote between them."""
    try:
        fields: dict[str, Any] = json.loads(line)
        return Diagnostic(**fields)
    except (ValueError, TypeError):
        return None


def _check_sum(check: ClusterJob) -> Diagnostic:
    """Return whether the ranks on both nodes summed right."""
    out = read_output(check.folder / "sum.json")
    reply = Reply(code=int(check.end.read_text()), out=out, err=read_output(check.folder / "sum.txt"))
    diagnostic = check_world(reply, title=_SUM, ranks=check.layout.ranks)
    if diagnostic.status == PROBLEM:
        error = first_error(reply.err)
        how = " ".join(check.scheduler.launcher(check.layout).words[:2])
        fix = f"{how} and the MPI library do not go together, or the network does not: see {check.folder}/sum.txt"
        return replace(diagnostic, finding=f"{diagnostic.finding}: {error}" if error else diagnostic.finding, fix=fix)
    nodes = reply.answers()[0]["nodes"]
    if len(nodes) != _NODES:
        finding = f"all ranks ran on {', '.join(nodes)}"
        return problem(
            _SUM, finding, f"the launcher takes one node of the job only: try another {setting('launcher')} in a site"
        )
    return replace(diagnostic, finding=f"{diagnostic.finding}, on {' and '.join(nodes)}")


def merge_nodes(checks: Iterator[NodeCheck]) -> tuple[NodeCheck, ...]:
    """Return the checks by topic, one for those that say the same on both nodes."""
    by_topic: dict[str, list[NodeCheck]] = {}
    for node_check in checks:
        by_topic.setdefault(node_check.check.topic, []).append(node_check)
    merged: list[NodeCheck] = []
    for same_topic in by_topic.values():
        different = {node_check.check for node_check in same_topic}
        if len(same_topic) == _NODES and len(different) == 1:
            merged.append(NodeCheck(node=_BOTH, check=same_topic[0].check))
        else:
            merged += same_topic
    return tuple(merged)
