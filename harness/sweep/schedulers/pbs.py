"""PBS (OpenPBS, PBS Pro): qsub, qstat, qdel; what they answer, as states, limits and nodes."""

import json
import logging
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from harness.base.current_user import user_name
from harness.base.errors import UserError
from harness.base.processes import Reply
from harness.base.setting_names import setting
from harness.schema.layout import Layout
from harness.schema.record import JobUsage
from harness.sweep import launch_command, schedulers
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.scheduler_answers import (
    CommandRunner,
    RetryPhrases,
    State,
    SubmissionUnknown,
    UnreadableAnswer,
    message,
    submission_error,
    unreadable,
)
from harness.sweep.schedulers import SiteFinding, at_once, compare_partition
from harness.sweep.site import Partition, clock_seconds, size_bytes, walltime

# What PBS's qstat and pbsnodes print, as JSON or text: jobs as states and usage, and nodes.

_QUEUED = {"Q": "queued", "H": "held", "W": "waiting for its start time", "T": "on its way", "S": "suspended"}
_RUNNING = {"R": "running", "E": "ending", "B": "begun", "U": "suspended: its workstation is busy"}
_AT_TIME_LIMIT = -29
_EXIT_CODES = {
    **dict.fromkeys((-1, -2), "PBS could not start it"),
    -3: "PBS could not start it and wanted to try again",
    **dict.fromkeys((-4, -5, -6), "it was ended when its node's PBS daemon was started again"),
    -10: "its user may not run on its node",
    -12: "it was started again after its node was lost",
    **dict.fromkeys((-24, -25), "PBS ended it: it used more cores than it asked for"),
    -26: "it ran out of virtual memory",
    -27: "it ran out of memory",
    -28: "PBS ended it at its limit of processor time",
    _AT_TIME_LIMIT: "PBS ended it at its time limit",
}
_ENDED = ("F", "X")  # every other letter, such as M of a job that another server has, may still be running
_ILL = {"down", "offline", "unknown", "state-unknown", "stale"}  # states of nodes
_JOULES = 3.6e6  # of a kilowatt-hour
_DELETED = 91  # substate
_NEVER_RUNS = re.compile("Can Never Run")  # PBS's own comment of such a job
_MOMENT = "%a %b %d %H:%M:%S %Y"  # in this host's time zone
_SIGNALLED = 256  # Exit_status of a job that a signal ended is 256 and its number


def read_state(job: Mapping[str, Any]) -> State:
    """Return the state of one job of ``qstat -x -f -F json``."""
    letter = str(job.get("job_state", ""))
    comment = str(job.get("comment", ""))
    nodes = ",".join(dict.fromkeys(re.findall(r"(?:^|\+)([^/+]+)/", str(job.get("exec_host", "")))))
    if letter in _QUEUED:
        starts = str(_entries(job, "estimated").get("start_time", ""))
        return State(phase="queued", word=_QUEUED[letter], reason=comment, starts=starts)
    if letter in _RUNNING:
        return State(phase="running", word=_RUNNING[letter], nodes=nodes)
    if letter not in _ENDED:
        return State(phase="present", word=letter, reason=comment, nodes=nodes)
    code = _exit_status(job)
    deleted = job.get("substate") == _DELETED
    return State(
        phase="ended",
        word=_meaning(job, comment),
        reason=comment,
        nodes=nodes,
        exit_code=code,
        forced=deleted or code is None or not 0 <= code <= _SIGNALLED,
        timed_out=code == _AT_TIME_LIMIT,
    )


def _exit_status(job: Mapping[str, Any]) -> int | None:
    """Return the exit status of a job, None where it has none.

    Raises:
        UnreadableAnswer: it is no whole number.
    """
    code = job.get("Exit_status")
    if code is None or (isinstance(code, int) and not isinstance(code, bool)):
        return code
    raise unreadable("qstat", f"Exit_status = {code}", "a whole number")


def _entries(attributes: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table of resources called `name`, an empty one where there is none."""
    table = attributes.get(name, {})
    return table if isinstance(table, dict) else {}


def _whole_number(text: object) -> int:
    """Return a count of resources, 0 where it is none or not readable."""
    return int(str(text)) if re.fullmatch(r"[0-9]{1,20}", str(text)) else 0


def _clock(text: object) -> float:
    """Return the seconds of PBS's clock, 0 where that is not readable."""
    try:
        return clock_seconds(str(text))
    except ValueError:
        return 0.0


def _number(text: object) -> float:
    """Return a measured amount, 0 where that is not readable."""
    return float(str(text)) if re.fullmatch(r"[0-9]{1,20}(\.[0-9]{1,20})?", str(text)) else 0.0


def _meaning(job: Mapping[str, Any], comment: str) -> str:
    code = _exit_status(job)
    if code is None:
        if _NEVER_RUNS.search(comment):
            return "PBS will never run it"
        return "it ended without having run: it was deleted, or what it depended on failed"
    if code in _EXIT_CODES:
        return _EXIT_CODES[code]
    signal = f"signal {code - _SIGNALLED}" if code > _SIGNALLED else f"exit code {code}"
    if job.get("substate") == _DELETED:  # by its owner or by an operator
        return f"it was deleted ({signal})"
    if code > _SIGNALLED:
        return f"{signal} ended it"
    return "PBS calls it finished, but it wrote no whole record" if code == 0 else "it failed"


def read_pbs_usage(job: Mapping[str, Any]) -> JobUsage | None:
    """Return what one job of ``qstat -x -f -F json`` used, None while it has not ended. Zero is not measured."""
    if str(job.get("job_state", "")) not in _ENDED:
        return None
    used = _entries(job, "resources_used")  # none: it never ran
    return JobUsage(
        elapsed_s=_clock(used.get("walltime", "0")),
        nodes=len(read_state(job).nodes.split(",")) if used else 0,
        cpu_s=_clock(used.get("cput", "0")) or None,
        memory_bytes=size_bytes(str(used.get("mem", ""))) or None,
        memory_of="a job",
        energy_j=_number(used.get("energy", 0)) * _JOULES or None,
    )


def read_pbs_time_left(job: Mapping[str, Any], now: float) -> float | None:
    """Return the seconds from `now` to the time limit of one running job of ``qstat -f``, None where it says no limit.

    `now` are seconds since 1970. Of a job that was suspended meanwhile it is too few.
    """
    limit_s = _clock(_entries(job, "Resource_List").get("walltime", ""))
    try:
        started = time.mktime(time.strptime(str(job.get("stime", "")), _MOMENT))
    except (ValueError, OverflowError):
        return None
    return limit_s - (now - started) if limit_s else None


def read_pbs_nodes(answer: str) -> tuple[Partition | None, dict[str, str]]:
    """Return what a job may get at most and which nodes are not well, from ``pbsnodes -a -F json``."""
    vnodes = read_table(answer, "nodes")
    ill: dict[str, str] = {}
    for name, node in vnodes.items():
        if _ILL & set(str(node.get("state", "")).split(",")):
            # What jobs may call it: its vnode's, its daemon's or its host's name, short or long.
            host = _entries(node, "resources_available").get("host", name)
            for long_name in map(str, (name, node.get("Mom", name), host)):
                ill[long_name] = f"node {name} is {node['state']}"
                ill[long_name.partition(".")[0]] = f"node {name} is {node['state']}"
    hosts = _by_host(vnodes)
    if not hosts:
        return None, ill
    return (
        Partition(
            name="of this PBS server",
            nodes=len(hosts),
            cores_per_node=max(_sum(resources, "ncpus") for resources in hosts.values()),
            numa_domains=_domains(hosts),
            gpus_per_node=max(_sum(resources, "ngpus") for resources in hosts.values()),
            memory_mb=max(_memory_bytes(resources) for resources in hosts.values()) // 1024**2 or None,
        ),
        ill,
    )


def read_pbs_queues(queues: str, server: str, node: Partition | None) -> tuple[Partition, ...]:
    """Return the queues that run jobs, from ``qstat -Q -f -F json``; the default is in ``qstat -B -f -F json``.

    Each has the limits of the queue and, where they are known, the facts of a `node`.

    Raises:
        UnreadableAnswer: an answer is no JSON, or not of that form.
    """
    defaults = {str(facts.get("default_queue", "")) for facts in read_table(server, "Server").values()}
    partitions: list[Partition] = []
    for name, queue in read_table(queues, "Queue").items():
        if queue.get("queue_type") != "Execution" or "False" in (queue.get("enabled"), queue.get("started")):
            continue
        most = _entries(queue, "resources_max")
        longest_s = _clock(most.get("walltime", ""))
        limits = replace(
            node or Partition(name=name),
            name=name,
            default=name in defaults,
            walltime=walltime(longest_s) if longest_s else None,
        )
        most_nodes = _whole_number(most.get("nodect"))
        partitions.append(replace(limits, nodes=most_nodes) if most_nodes else limits)
    return tuple(partitions)


def _by_host(vnodes: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the resources of the vnodes of each host: a site may have a vnode for each NUMA domain."""
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for name, vnode in vnodes.items():
        resources = _entries(vnode, "resources_available")
        hosts.setdefault(str(resources.get("host", name)), []).append(resources)
    # The vnode that stands for a whole host beside those of its domains has no cores of its own.
    return {host: _with_cores(some) or some for host, some in hosts.items()}


def _with_cores(resources: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [one for one in resources if _whole_number(one.get("ncpus"))]


def _domains(hosts: Mapping[str, Sequence[Mapping[str, Any]]]) -> int | None:
    """Return the NUMA domains of a host where each is a vnode, None where a host is one vnode."""
    most = max(map(len, hosts.values()))
    return most if most > 1 else None


def _sum(resources: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(_whole_number(one.get(name, 0)) for one in resources)


def _memory_bytes(resources: Iterable[Mapping[str, Any]]) -> int:
    return sum(size_bytes(str(one.get("mem", ""))) for one in resources)


def read_table(answer: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the attributes of jobs (`name` is ``Jobs``) or ``nodes`` by identifier from an answer in JSON.

    Raises:
        UnreadableAnswer: it is no JSON, or not of that form.
    """
    if not answer.strip():
        return {}
    try:
        # strict=False: PBS copies control characters out of job environments as they are.
        table = json.loads(answer, strict=False).get(name, {})
    except (ValueError, AttributeError, RecursionError) as error:
        raise UnreadableAnswer(f"PBS answered with damaged JSON ({error})") from error
    if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
        raise UnreadableAnswer(f"PBS answered with JSON whose '{name}' is not a table")
    return table


# Outside of texts: what stands between separators. OpenPBS leaves the quotes out where a text looks like a number.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"\[\]{},:]+', re.DOTALL)


def quote_bare_texts(answer: str) -> str:
    """Return an answer in JSON with quotes around what OpenPBS writes bare and JSON has no number for.

    Its qstat asks strtod whether a text is a number (openpbs issue 1255): ``007123``, ``.5``, ``1e5x`` are texts of
    users, environments and job names. Everything else stays as it is.
    """

    def quoted(match: re.Match[str]) -> str:
        token = match[0]
        if token.startswith('"'):
            return token
        try:
            json.loads(token, parse_constant=_refuse)
        except ValueError:
            return json.dumps(token)
        return token

    return _TOKEN.sub(quoted, answer)


def _refuse(token: str) -> None:
    """Raise a ValueError: NaN and Infinity are texts here."""
    raise ValueError(token)


_HEADING = re.compile(r"Job Id:\s*(?P<job>\S+)\s*")
_ATTRIBUTE = re.compile(r" {4}(?P<name>[A-Za-z_][\w.]*) = (?P<text>.*)")
_NUMBERS = ("substate", "Exit_status")
_TABLES = ("resources_used", "Resource_List", "estimated")


def read_text_table(answer: str) -> dict[str, dict[str, Any]]:
    """Return the attributes of jobs by identifier from the text form of ``qstat -f``, as `read_table` does.

    Raises:
        UnreadableAnswer: it has lines, and no job; or a number of a job is none.
    """
    table: dict[str, dict[str, Any]] = {}
    job: dict[str, Any] = {}
    last = ""
    for line in answer.splitlines():
        if heading := _HEADING.fullmatch(line):
            job = table.setdefault(heading["job"], {})
            last = ""
        elif attribute := _ATTRIBUTE.fullmatch(line):
            last = attribute["name"]
            job[last] = attribute["text"]
        elif line.startswith("\t") and last:
            job[last] += line[1:]
    if answer.strip() and not table:
        raise UnreadableAnswer(f"qstat -f names no job: '{answer.strip().splitlines()[0]}'")
    return {name: _typed(name, attributes) for name, attributes in table.items()}


def _typed(job: str, attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of `job` with the numbers and tables that they have in JSON."""
    typed: dict[str, Any] = {}
    for name, text in attributes.items():
        table, dot, resource = name.partition(".")
        if dot and table in _TABLES:
            typed.setdefault(table, {})[resource] = text
        elif name in _NUMBERS:
            if not re.fullmatch(r"-?\d+", text.strip()):
                raise UnreadableAnswer(f"qstat -f gives job {job} {name} = '{text}', which is no number")
            typed[name] = int(text)
        else:
            typed[name] = text
    return typed


_LOG = logging.getLogger(__name__)
_UNKNOWN_JOB, _HAS_FINISHED = 153, 35  # what qstat ends with when it does not list one of the jobs it was asked for
_NO_HISTORY = "not configured to maintain job history"
REMOTE = "remote.sh"  # beside the scripts: starts mpirun's daemons on the other nodes
# qsub(1B) of OpenPBS 23.06 and the resources of pbs_resources(7B) that a job of ours may ask for.
_OPTIONS = "aAcCehIjJklmMNopPqrRSuvVWz"
_OLD = re.compile(r"\b(ppn|nodes)=")

# What qsub prints, by OpenPBS's pbs_messages.c and qsub.c.
SUBMISSIONS = RetryPhrases(
    lost=(
        "cannot connect to server",
        "Connection (refused|reset|timed out)",
        "Communication failure",
        "Premature end of message",
        "End of File",
        "Batch protocol error",
        "(Invalid|Expired) credential",
        "No free connections",
        "Server connection table full",
        "Server shutting down",
        "System error",
        "PBS server internal error",
        "Failed to save job",
        "Resource temporarily unavailable",
        "Too many submit retries",
    ),
    full=(
        "Maximum number of jobs",
        r"per-(user|group|project) limit of jobs",
        r"would exceed (queue \S+|complex)'s per-(user|group|project) limit",
    ),
    full_or_too_large=("would exceed .*limit on resource",),
    # Where a site's hook speaks instead: the server's error number (pbs_error.h), of which qsub leaves a byte.
    full_codes=(15046 % 256, 15142 % 256),
    full_or_too_large_codes=(15143 % 256,),
)


class Scheduler(schedulers.Scheduler):
    """Submits scripts with qsub; one qstat answers for all jobs where it can."""

    name = "pbs"
    title = "PBS"
    template = "pbs.sh.j2"
    directive = "#PBS"
    ping = ("qstat", "-B")
    asks_for_one = ("qstat",)
    no_such_job = "Unknown Job Id|Job has finished"
    canceller: ClassVar[tuple[str, ...]] = ("qdel",)
    identifier = r"\d+(\[\d*\])?(\.[\w.-]+)?"
    unknown: ClassVar[tuple[str, ...]] = ("qos", "signal_s")
    launchers = ("auto", "mpirun")

    _history = True
    _answers_all = True
    _json = True
    _noted = False

    def check_request(self) -> None:
        """Refuse two queues."""
        if self.request.partition and self.request.reservation:
            raise UserError(
                f"{setting('partition', self.request.partition)} and "
                f"{setting('reservation', self.request.reservation)} are both queues in PBS: leave out "
                f"{setting('partition')}, a reservation has its own"
            )

    @classmethod
    def detect(cls) -> str | None:
        """Tell PBS from Torque and from Slurm's imitation, whose qstat knows other options.

        Raises:
            UserError: qsub is of another system, and Slurm is not here: a login node is no place to train instead.
        """
        program = shutil.which("qsub")
        if not program or not shutil.which("qstat"):
            return None
        answer = CommandRunner().ask(("qstat", "--version"))
        if not answer.code and "pbs_version" in answer.out + answer.err:
            return program
        if shutil.which("sbatch"):
            return None
        raise UserError(
            f"qsub is here and not that of OpenPBS or PBS Pro (qstat --version says {message(answer)!r}): "
            f"such a system is unknown, {setting('scheduler', 'local')} trains on this machine"
        )

    def ask_limit(self) -> Partition | None:
        """Return what the server's nodes have: qsub would not refuse more."""
        return self._nodes()[0]

    def partitions(self) -> tuple[Partition, ...]:
        """Return the queues, each with what the server's nodes have: PBS does not say which nodes a queue has."""
        node = self.ask_limit()
        queues = self.commands.ask(("qstat", "-Q", "-f", "-F", "json")).out
        server = self.commands.ask(("qstat", "-B", "-f", "-F", "json")).out
        try:
            return read_pbs_queues(queues, server, node)
        except UnreadableAnswer as error:
            _LOG.warning("nothing is known of the queues: %s", error)
            return ()

    def unusable_nodes(self) -> tuple[str, ...]:
        """Return what is wrong with nodes by pbsnodes."""
        return tuple(dict.fromkeys(self._nodes()[1].values()))

    def refuse_line(self, line: str) -> str | None:
        """Return what is wrong with a directive: OpenPBS takes ``nodes=2:ppn=2`` and gives something else."""
        words = line.split()
        if len(words) < 2 or not re.fullmatch(r"-[A-Za-z]", words[1]) or words[1][1] not in _OPTIONS:
            return "is not an option of qsub: write one letter, such as #PBS -l"
        if words[1] == "-l" and _OLD.search(" ".join(words[2:])):
            return "asks for nodes in the old way: write select=2:ncpus=4:mpiprocs=4"
        return None

    def helpers(self, layout: Layout) -> tuple[str, ...]:
        """Return what starts mpirun's daemons on other nodes."""
        return (REMOTE,) if layout.nodes > 1 else ()

    def launcher(self, layout: Layout) -> LaunchCommand:
        """Return mpirun, which reads PBS_NODEFILE by itself."""
        return launch_command.mpirun(layout, self.site, agent=f"$jobs/{REMOTE}" if layout.nodes > 1 else None)

    def node_check(self, layout: Layout) -> tuple[str, ...]:
        """Return what starts mpirun's daemons there too."""
        return (f"$jobs/{REMOTE}",) if layout.nodes > 1 else ()

    def output(self, folder: Path, job: str) -> Path:
        """Return the file that PBS makes when ``-o`` names a folder."""
        return folder / f"{job}.OU"

    def submit(self, job: schedulers.JobFiles) -> tuple[str, ...]:
        """Queue `job` with qsub."""
        reply = self.commands.submit(("qsub", str(job.script)))
        if reply.code != 0:
            raise submission_error("qsub", reply, SUBMISSIONS)
        number = re.search(r"^(\d+(\[\])?(\.\S+)?)\s*$", reply.out, re.MULTILINE)
        if number is None:
            raise SubmissionUnknown(f"qsub ends well without a job's number: {message(reply)}", lost=True)
        return tuple(self.task(number[1], index) for index in range(job.tasks)) or (number[1],)

    def task(self, job: str, index: int) -> str:
        """Return the identifier of an array's task: ``7[].head`` becomes ``7[2].head``."""
        return job.replace("[]", f"[{index}]")

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the identifiers of the user's queued or running jobs called one of `names`.

        Raises:
            UserError: the server does not answer, or does not say what one of the user's jobs is called.
        """
        question = ("qselect", "-u", user_name())
        going = self.commands.run(question).split()
        jobs = self._table(going)
        nameless = [number for number in going if number not in jobs]
        if nameless:  # they have just ended, or what they are called is not said
            still_going = self.commands.run(question).split()
            for number in nameless:
                if number in still_going:
                    raise UnreadableAnswer(f"qselect lists job {number}, and qstat does not say what it is called")
        numbers = {str(job.get("Job_Name", "")): number for number, job in jobs.items()}
        return {name: numbers[name] for name in names if name in numbers}

    def find_ended(self, names: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """Return the identifiers of the jobs called one of `names` that have ended, where the server keeps a history.

        qselect lists them with ``-x``, which a server without history refuses.
        """
        reply = self.commands.ask(("qselect", "-x", "-u", user_name()))
        if reply.code:
            return {}
        wanted = set(names)
        ended: dict[str, list[str]] = {}
        for number, job in self._table(reply.out.split()).items():
            name = str(job.get("Job_Name", ""))
            if name in wanted and read_state(job).phase == "ended":
                ended.setdefault(name, []).append(number)
        return ended

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the states of `jobs`: one qstat for all, and one pbsnodes while some run.

        PBS leaves a job that has lost a node in the state R (OpenPBS 23.06: minutes after the node is down).
        """
        wanted = list(jobs)
        table = self._table(wanted)
        states = {job: read_state(table[job]) if job in table else State(phase="unknown") for job in wanted}
        if any(state.phase == "running" or state.exit_code for state in states.values()):
            _, ill = self._nodes()
            for job, state in states.items():
                lost = [ill[node] for node in state.nodes.split(",") if node in ill]
                # Of a job that failed an ill node is the cause, whatever it wrote.
                if lost and state.phase in ("running", "ended") and state.exit_code != 0:
                    forced = state.forced or state.phase == "ended"
                    states[job] = replace(state, reason="; ".join(lost), forced=forced)
        return states

    def account(self, jobs: Sequence[str]) -> Mapping[str, JobUsage] | str:
        """Return what the server's job history knows."""
        used = {name: read_pbs_usage(job) for name, job in self._table(jobs).items()}
        if not self._history:
            return "qstat: the server keeps no job history"
        return {name: usage for name, usage in used.items() if usage is not None}

    def findings(self) -> Iterator[SiteFinding]:
        """Compare the statements of the site file with pbsnodes and the queues."""
        limit, ill = self._nodes()
        for sentence in dict.fromkeys(ill.values()):
            yield SiteFinding(text=f"note: {sentence}")
        if limit is not None:
            text = f"{limit.nodes} nodes, {limit.cores_per_node} cores and {limit.gpus_per_node} GPUs a node"
            yield SiteFinding(text=f"pbsnodes: {text}")
        for stated in self.site.partition:
            reply = self.commands.ask(("qstat", "-Q", "-f", stated.name))
            yield SiteFinding(good=not reply.code, text=f"queue {stated.name} exists")
            if limit is not None:
                yield from compare_partition(replace(stated, walltime=None), limit)
        tmrsh = shutil.which("pbs_tmrsh") or "pbs_tmrsh where the job finds it, or ssh"
        yield SiteFinding(text=f"ranks on other nodes start through {tmrsh}")

    def _table(self, jobs: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what qstat says of those of `jobs` that it lists.

        Without job history an ended job is not listed, and ``-x`` lists none at all. Some versions answer for the
        first of several jobs only (openpbs issue 2672): then each is asked for alone.
        """
        attributes: dict[str, dict[str, Any]] = {}
        for part in at_once(jobs) if self._answers_all else at_once(jobs, 1):
            table, complete = self._ask(part)
            attributes |= table
            rest = [job for job in part if job not in table]
            if rest and complete and len(part) > 1:
                asked_alone: dict[str, dict[str, Any]] = {}
                for job in rest:
                    asked_alone |= self._ask([job])[0]
                self._answers_all = not asked_alone
                attributes |= asked_alone
        return attributes

    def _ask(self, jobs: Sequence[str]) -> tuple[dict[str, dict[str, Any]], bool]:
        """Return what one qstat says of `jobs`, and whether it claims to have listed all."""
        reply = self._qstat(jobs, ("-F", "json") if self._json else ())
        if reply is None:
            return self._ask(jobs)
        if not self._json:
            return read_text_table(reply.out), reply.code == 0
        try:
            return read_table(reply.out, "Jobs"), reply.code == 0
        except UnreadableAnswer as error:
            return self._read_otherwise(jobs, reply, error)

    def _qstat(self, jobs: Sequence[str], form: Sequence[str]) -> Reply | None:
        """Return what qstat says of `jobs` in a `form`, None if it has to be asked again, as it keeps no history.

        Raises:
            UserError: it ends with an error, or gives no answer.
        """
        reply = self.commands.ask(("qstat", *(("-x",) if self._history else ()), "-f", *form, *jobs))
        if self._history and _NO_HISTORY in reply.err:
            self._history = False
            return None
        if reply.code not in (0, _UNKNOWN_JOB, _HAS_FINISHED):
            raise UserError(f"qstat refused: {message(reply)}")
        return reply

    def _read_otherwise(
        self, jobs: Sequence[str], damaged: Reply, error: UnreadableAnswer
    ) -> tuple[dict[str, dict[str, Any]], bool]:
        """Return what qstat says of `jobs` in its text form, which is then asked for; else by its own rule of quotes.

        Raises:
            UnreadableAnswer: neither can be read.
        """
        text = self._qstat(jobs, ())
        if text is None:
            return self._ask(jobs)
        try:
            table = read_text_table(text.out)
        except UnreadableAnswer as unreadable:
            table = self._read_bare(damaged, error, unreadable)
            return table, damaged.code == 0
        self._json = False
        _LOG.warning("%s: from now on the text form of qstat -f is read", error)
        return table, text.code == 0

    def _read_bare(
        self, damaged: Reply, error: UnreadableAnswer, unreadable: UnreadableAnswer
    ) -> dict[str, dict[str, Any]]:
        """Return the jobs of a `damaged` answer in JSON whose texts that look like numbers have no quotes."""
        try:
            table = read_table(quote_bare_texts(damaged.out), "Jobs")
        except UnreadableAnswer:
            raise UnreadableAnswer(f"{error}, and {unreadable}: ask the site about qstat -f -F json") from error
        if not self._noted:
            self._noted = True
            _LOG.warning("%s: what it writes without quotes and is no number is read as text", error)
        return table

    def _nodes(self) -> tuple[Partition | None, dict[str, str]]:
        """Return what the server's nodes have and which are not well; nothing where that cannot be read."""
        answer = self.commands.ask(("pbsnodes", "-a", "-F", "json")).out
        try:
            return read_pbs_nodes(answer)
        except UnreadableAnswer:
            pass
        try:
            return read_pbs_nodes(quote_bare_texts(answer))
        except UnreadableAnswer as error:
            _LOG.warning("nothing is known of the nodes: pbsnodes: %s", error)
            return None, {}
