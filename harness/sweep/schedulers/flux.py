"""Flux (flux-core): flux batch, flux jobs, flux cancel. Met on three brokers of flux-core on one machine alone."""

import re
from collections.abc import Iterable, Mapping, Sequence

from harness.comm.mpi_library import Family, find_mpi
from harness.schema.layout import Layout
from harness.sweep import schedulers
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.scheduler_answers import (
    RetryPhrases,
    State,
    SubmissionUnknown,
    keep_unended,
    message,
    submission_error,
    unreadable,
)
from harness.sweep.schedulers import ended_jobs
from harness.sweep.site import Partition

# Job states of Flux's RFC 21.
_QUEUED = {"NEW", "DEPEND", "PRIORITY", "SCHED"}
_RUNNING = {"RUN", "CLEANUP"}
_ENDED = "INACTIVE"
_FORMAT = "{id.dec}|{state}|{result}|{returncode}|{nodelist}|{name}"
_LIST = ("flux", "jobs", "--no-header", f"--format={_FORMAT}")
_OWN_END = {"COMPLETED", "FAILED"}
# What flux batch prints, by the job manager's and the ingest's plugins of flux-core, flux-sched and flux-accounting.
SUBMISSIONS = RetryPhrases(
    lost=(
        "Unable to connect to Flux",
        "Connection (refused|reset|timed out)",
        "Broken pipe",
        "Transport endpoint is not connected",
        "No route to host",
        "Function not implemented",
        "Lost connection",
    ),
    full=("max(imum)?( number of)? (active )?jobs",),
)


class Scheduler(schedulers.Scheduler):
    """Submits scripts with flux batch; in their instance flux run starts the ranks; one flux jobs answers for all."""

    name = "flux"
    title = "Flux"
    template = "flux.sh.j2"
    directive = "#flux:"
    submits_by = "flux"
    ping = ("flux", "uptime")
    asks_for_one = ("flux", "jobs", "--no-header", "--format={id.dec}")
    no_such_job = "JobID .* unknown"
    canceller = ("flux", "cancel")
    identifier = r"\d+"
    unknown = ("project", "qos", "reservation", "memory", "requeue", "signal_s")
    modes = ("turns", "jobs")
    launchers = ("auto",)

    def refusal(self, layout: Layout) -> str | None:
        """Return why `layout` cannot run: flux run deals ranks out evenly."""
        if layout.last_node:
            return "needs fewer ranks on its last node, and Flux deals them out evenly"
        return super().refusal(layout)

    def ask_limit(self) -> Partition | None:
        """Return what this instance has: of unequal nodes their mean, rounded up."""
        answer = self.commands.ask(("flux", "resource", "info")).out
        match = re.search(r"(\d+) Nodes, (\d+) Cores, (\d+) GPUs", answer)
        if match is None:
            return None
        nodes, cores, gpus = map(int, match.groups())
        cores, gpus = (-(-units // max(1, nodes)) for units in (cores, gpus))
        return Partition(name="of this Flux instance", nodes=nodes, cores_per_node=cores, gpus_per_node=gpus)

    def launcher(self, layout: Layout) -> LaunchCommand:
        """Return flux run, by PMIx for Open MPI (Flux's plugin flux-pmix) and by its own PMI for MPICH."""
        words = ["flux", "run", f"--nodes={layout.nodes}", f"--ntasks={layout.ranks}"]
        words.append(f"--cores-per-task={layout.threads}")
        if layout.gpus_per_rank:
            words.append(f"--gpus-per-task={layout.gpus_per_rank}")
        if find_mpi().family is Family.OPEN_MPI:
            words.append("--setopt=pmi=pmix")
        words.append(f"--setopt=cpu-affinity={'per-task' if self.site.binding == 'cores' else 'off'}")
        # Without it the other ranks wait for a dead one until the time limit.
        words.append("--setopt=exit-on-error")
        return LaunchCommand(words=(*words, *self.site.launcher_options), node_option="--setattr")

    def submit(self, job: schedulers.JobFiles) -> tuple[str, ...]:
        """Queue `job` with flux batch."""
        reply = self.commands.submit(("flux", "batch", str(job.script)))
        if reply.code != 0:
            raise submission_error("flux batch", reply, SUBMISSIONS)
        lines = reply.out.split()
        number = self.commands.ask(("flux", "job", "id", "--to=dec", lines[-1])) if lines else reply
        if not re.fullmatch(r"[0-9]+\s*\n", number.out):  # without its end the line may be cut: another job's number
            raise SubmissionUnknown(f"flux batch ends well without a job's number: {message(number)}", lost=True)
        return (number.out.strip(),)

    def listed(self, jobs: Sequence[str]) -> Mapping[str, tuple[State, str]]:
        """Return state and name by number of `jobs`, or of all that are queued or running."""
        return read_jobs(self.commands.ask((*_LIST, *jobs)).out if jobs else self.commands.run(_LIST))

    def find_ended(self, names: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """Return the numbers of the jobs called one of `names` that have ended, the newest thousand."""
        return ended_jobs(read_jobs(self.commands.run((*_LIST, "--filter=inactive"))), names)

    @classmethod
    def meaning(cls, word: str) -> str:
        """Return it in words."""
        return "Flux calls it completed, but it wrote no whole record" if word == "COMPLETED" else f"it ended ({word})"


def read_jobs(answer: str) -> dict[str, tuple[State, str]]:
    """Return state and name by number from ``flux jobs --no-header --format=_FORMAT``."""
    jobs: dict[str, tuple[State, str]] = {}
    for line in answer.splitlines():
        cells = [cell.strip() for cell in line.split("|", 5)]
        if len(cells) < 6:
            raise unreadable("flux jobs", line, "a line of 6 cells")
        number, word, result, code, nodes, name = cells
        if word in _QUEUED:
            state = State(phase="queued", word=word)
        elif word in _RUNNING:
            state = State(phase="running", word=word, nodes=nodes)
        elif word != _ENDED:
            state = State(phase="present", word=word, nodes=nodes)
        else:
            ended = int(code) if re.fullmatch(r"-?[0-9]{1,9}", code) else None
            state = State(
                phase="ended",
                word=result,
                nodes=nodes,
                exit_code=ended,
                forced=result not in _OWN_END,
                timed_out=result == "TIMEOUT",
            )
        keep_unended(jobs, number, state, name)
    return jobs
