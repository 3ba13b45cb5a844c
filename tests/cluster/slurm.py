"""A real Slurm on this machine: a controller and several slurmd under names of their own, as children."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.leftovers import CONFIG, end_left, watch
from tests.hosts.lab import Lab

DAEMONS = ("munged", "slurmctld", "slurmd")
_WAIT_S = 30.0
# Debian keeps the daemons where a user's PATH may not lead.
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
# config_overrides: nodes may state more cores than the machine has. TmpFS of each node's own: PMIx of two nodes
# on one machine would meet in /tmp. ReturnToService: what a test set down stays down, what crashed comes back.
_CONFIG = """\
ClusterName=test
SlurmctldHost={controller}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
EnforcePartLimits=ALL
PropagateResourceLimits=NONE
MailProg=/bin/true
ReturnToService=1
SlurmdTimeout=5
SlurmctldTimeout=5
KillWait=1
MinJobAge=3600
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
"""
_NODE = (
    "NodeName=n{number} NodeHostname={host} NodeAddr={address} Port={port} CPUs={cores} Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket={cores} ThreadsPerCore=1 RealMemory=4000 Gres=gpu:{gpus} State=UNKNOWN\n"
)


def missing() -> str | None:
    """Return why no cluster can be started here, or None."""
    absent = [name for name in DAEMONS if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"no {', '.join(absent)} here (Debian: apt-get install slurm-wlm munge libpmix-dev)"
    if os.geteuid():
        return "a test cluster needs root"
    return None


@dataclass(kw_only=True)
class Cluster:
    """The running cluster. `folder` holds its configuration, state and logs; `daemons` its processes by name.

    With a `lab` every node is one of its hosts, and the controller and its users are on n1.
    """

    folder: Path
    nodes: tuple[str, ...]
    lab: Lab | None = None
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Slurm's commands find this cluster."""
        return os.environ | {CONFIG: str(self.config)}

    def on(self, node: str, words: Sequence[str], folder: Path | None = None) -> list[str]:
        """Return the command `words` as it is run on `node`, in `folder` where that is another host."""
        return [*(self.lab.enter(node, folder) if self.lab else ()), *words]

    def ask(self, *words: str) -> str:
        """Run one of Slurm's commands and return what it printed."""
        answer = subprocess.run(
            self.on("n1", words), env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert answer.returncode == 0, f"{' '.join(words)}: {answer.stdout}{answer.stderr}"
        return answer.stdout

    def start_node(self, name: str) -> None:
        """Start the slurmd of `name`."""
        self._start(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """End the slurmd of `name` as a crash would."""
        self.daemons[name].kill()
        self.daemons.pop(name).wait()

    def set_node(self, name: str, state: str, reason: str = "a test") -> None:
        """Bring `name` into `state`: ``drain``, ``down``, ``resume``."""
        self.ask("scontrol", "update", f"nodename={name}", f"state={state}", f"reason={reason}")

    def heal(self) -> None:
        """End all jobs, bring every node back and wait until all are idle."""
        self.ask("scancel", "--quiet", "--user=root")
        for name in self.nodes:
            if name not in self.daemons:
                self.start_node(name)
        wait_for(self._all_idle, "idle nodes")

    def _all_idle(self) -> bool:
        states = self.states()
        for name, state in states.items():
            # A node that does not respond yet comes back by itself.
            if state.startswith(("drain", "down")) and not state.endswith("*"):
                self._try("scontrol", "update", f"nodename={name}", "state=resume")
        return set(states.values()) == {"idle"}

    def states(self) -> dict[str, str]:
        """Return the nodes' states by name."""
        lines = self.ask("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
        return dict(line.split() for line in lines)

    def jobs(self) -> list[str]:
        """Return the identifiers of all jobs that were ever submitted; every task of an array counts."""
        return self.ask("squeue", "-h", "-r", "-t", "all", "-o", "%i").split()

    def _start(self, name: str, *words: str) -> None:
        environment = self.environment | {"PATH": _PATH}
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                self.on(name if name in self.nodes else "n1", words),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start(self) -> None:
        """Start munge, the controller and all nodes, and wait until all are idle."""
        munge = self.folder / "munge"
        files = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", "munged", "--foreground", "--num-threads=2", f"--socket={munge / 'socket'}", *files)
        wait_for((munge / "socket").exists, "munged")
        self._start("slurmctld", "slurmctld", "-D", "-i")
        wait_for(lambda: self._try("scontrol", "ping"), "slurmctld")
        for name in self.nodes:
            self.start_node(name)
        wait_for(lambda: set(self.states().values()) == {"idle"}, "idle nodes")

    def _try(self, *words: str) -> bool:
        tried = subprocess.run(self.on("n1", words), env=self.environment, capture_output=True, check=False)
        return tried.returncode == 0

    def stop(self) -> None:
        """End all jobs and every process that was started, also where no controller answers any more.

        Raises:
            AssertionError: the controller did not end the jobs, or a process is left.
        """
        try:
            self._end_jobs()
        finally:
            self._end_daemons()

    def _end_jobs(self) -> None:
        if "slurmctld" in self.daemons and self.daemons["slurmctld"].poll() is None:
            self.ask("scancel", "--quiet", "--user=root")
            wait_for(lambda: not self.ask("squeue", "-h").strip(), "the last job to end")

    def _end_daemons(self) -> None:
        for name in reversed(tuple(self.daemons)):
            daemon = self.daemons.pop(name)
            daemon.terminate()
            try:
                daemon.wait(_WAIT_S / 3)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        end_left(self.folder)  # steps, and jobs that no controller has ended


@contextmanager
def running(
    folder: Path, *, nodes: int = 4, cores: int = 4, gpus: int = 2, own_hosts: bool = False, lab: Lab | None = None
) -> Iterator[Cluster]:
    """Yield a Slurm of `nodes` nodes that keeps its files in `folder`, a short path that others may enter.

    With `own_hosts` every node claims a host name of its own, as if it were a machine of its own; with a `lab`, which
    has as many hosts, every node is one.
    """
    for name in ("munge", "state", "log", "dev"):
        (folder / name).mkdir()
    (folder / "munge/key").write_bytes(os.urandom(1024))
    (folder / "munge/key").chmod(0o400)
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    port, *ports = _free_ports(nodes + 1)
    controller = f"n1({lab.addresses['n1']})" if lab else "localhost"
    config = _CONFIG.format(folder=folder, port=port, controller=controller)
    for number, node_port in enumerate(ports, start=1):
        (folder / "tmp" / f"n{number}").mkdir(parents=True)
        (folder / "spool" / f"n{number}").mkdir(parents=True)
        name, host, address = f"n{number}", f"host{number}" if own_hosts else "localhost", "127.0.0.1"
        if lab:
            host, address = name, lab.addresses[name]
        config += _NODE.format(number=number, host=host, address=address, port=node_port, cores=cores, gpus=gpus)
    config += "PartitionName=normal Nodes=ALL Default=YES MaxTime=60:00 State=UP\n"
    (folder / "slurm.conf").write_text(config)
    devices = [folder / "dev" / f"gpu{number}" for number in range(gpus)]
    for device in devices:
        os.mknod(device, 0o20666, os.makedev(1, 3))
    lines = [f"NodeName=n[1-{nodes}] Name=gpu File={device}\n" for device in devices]
    (folder / "gres.conf").write_text("AutoDetect=off\n" + "".join(lines))
    cluster = Cluster(folder=folder, nodes=names, lab=lab)
    watcher = watch(folder)
    with ExitStack() as stack:
        stack.callback(watcher.communicate, b"x")
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster


def wait_for(condition: Callable[[], bool], what: str, seconds: float = _WAIT_S) -> None:
    """Wait until `condition` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
