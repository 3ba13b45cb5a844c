"""LSF: bsub, bjobs, bkill. Written from its manual (IBM Spectrum LSF 10.1); never run on a system of it."""

import re
from collections.abc import Mapping, Sequence

from harness.base.errors import UserError
from harness.schema.sweep import Layout
from harness.sweep import launch_command, scheduler
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.scheduler import Job, State

_QUEUED = {"PEND", "PSUSP", "PROV", "WAIT"}
_RUNNING = {"RUN", "USUSP", "SSUSP", "UNKWN"}
_FIELDS = "jobid stat exit_code job_name exec_host exit_reason pend_reason delimiter='|'"


class Scheduler(scheduler.Scheduler):
    """Submits scripts with bsub, which reads them from its standard input; one bjobs answers for all jobs."""

    name = "lsf"
    template = "lsf.sh.j2"
    directive = "#BSUB"
    submits_by = "bsub"
    ping = ("lsid",)
    canceller = ("bkill",)
    path_characters = r"\w./+@=-"  # % begins a pattern
    unknown = ("account", "qos", "memory", "signal_s")
    shapes = ("jobs", "nested")
    launchers = ("auto", "mpirun")

    def launcher(self, layout: Layout) -> LaunchCommand:
        """Return mpirun, whose daemons on other nodes start through LSF's blaunch."""
        return launch_command.mpirun(layout, self.site, agent="blaunch" if layout.nodes > 1 else None)

    def submit(self, job: Job) -> tuple[str, ...]:
        """Queue `job` with bsub."""
        answer = self.commands.run(("sh", "-c", 'exec bsub <"$0"', str(job.script)))
        number = re.search(r"Job <(\d+)>", answer)
        if number is None:
            raise UserError(f"bsub answered without a job's number ({answer.strip()[:120]}): see `bjobs`")
        return (number[1],)

    def listed(self, jobs: Sequence[str]) -> Mapping[str, tuple[State, str]]:
        """Return state and name by number of all jobs; bjobs lists ended ones for an hour (CLEAN_PERIOD)."""
        return read_jobs(self.commands.ask(("bjobs", "-a", "-noheader", "-o", _FIELDS)).out)

    def explain(self, state: State) -> str:
        """Return what became of an ended job."""
        if state.phase == "unknown":
            return "LSF no longer lists the job: it ended some time ago (see `bhist`)"
        text = "LSF calls it done, but it wrote no whole record" if state.word == "DONE" else f"it ended ({state.word})"
        return f"{text}: {state.reason}" if state.reason else text


def read_jobs(answer: str) -> dict[str, tuple[State, str]]:
    """Return state and name by number from ``bjobs -noheader -o``; a ``-`` is an empty field."""
    found = {}
    for line in answer.splitlines():
        cells = ["" if cell.strip() == "-" else cell.strip() for cell in line.split("|")]
        if len(cells) < 7:
            continue  # "No job found"
        number, word, code, name, hosts, ended, waits = cells[:7]
        nodes = ",".join(dict.fromkeys(host.rpartition("*")[2] for host in hosts.split(":")))
        if word in _QUEUED:
            state = State(phase="queued", word=word, reason=waits)
        elif word in _RUNNING:
            state = State(phase="running", word=word, nodes=nodes)
        else:
            done = 0 if word == "DONE" else int(code) if code.isdigit() else None
            state = State(phase="ended", word=word, reason=ended, nodes=nodes, exit_code=done, forced="TERM_" in ended)
        found[number] = (state, name)
    return found
