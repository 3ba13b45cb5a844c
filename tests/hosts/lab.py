"""Hosts that are not there: each a network, host name and shared memory of its own on this machine.

Their interfaces meet in a software switch with a delay and a rate (`tests.hosts.switch`); no route leads out. Needs
root, util-linux (unshare, nsenter), iproute2 and /dev/net/tun.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.comm.mpi_library import AS_ROOT, Family, find_mpi
from harness.sweep.launch_command import mpirun_words

_START_S = 120.0
_NAP_NS = 500_000
_SET_UP = """
set -e
hostname {name}
mount -t tmpfs tmpfs /dev/shm
mount --bind {hosts} /etc/hosts
ip link set lo up
for scope in all default; do echo 1 >/proc/sys/net/ipv6/conf/$scope/disable_ipv6; done
echo reno >/proc/sys/net/ipv4/tcp_congestion_control
echo 0 >/proc/sys/net/ipv4/tcp_slow_start_after_idle
touch {ready}
exec sleep infinity
"""
# Over the switch by plain TCP, whatever else the library would find; ranks outnumber cores, so they yield.
_OPEN_MPI = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_prte_if_include": "eth0",
}


def missing() -> str:
    """Return why there can be no such hosts here, empty when there can."""
    if os.geteuid() != 0:
        return "needs root"
    tools = [tool for tool in ("unshare", "nsenter", "ip", "mount") if shutil.which(tool) is None]
    if tools:
        return f"needs {', '.join(tools)}"
    if not Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "--ipc", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "needs the right to make namespaces"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """Hosts n1, n2 ... that are up. `folder` is seen by all of them."""

    folder: Path
    pids: dict[str, int]
    addresses: dict[str, str]

    def enter(self, name: str, folder: Path | None = None) -> list[str]:
        """Return the words before a command that run it on host `name`, in `folder` (by default the present one)."""
        return _enter(self.pids[name], folder or Path.cwd())

    def network(self, *, delay_s: float = 0.0, bytes_per_s: float = 0.0, cut: Sequence[str] = ()) -> None:
        """Change the delay of messages between hosts, how fast a host sends (0: no limit), and who is cut off."""
        control = self.folder / "control"
        partial = control.with_suffix(".new")
        partial.write_text(" ".join([str(delay_s), str(bytes_per_s), *cut]) + "\n")
        partial.replace(control)
        time.sleep(0.2)

    def slowed_down(self) -> dict[str, str]:
        """Make the hosts fit for time that passes slower; return what the environment of their ranks needs besides.

        TCP's timers and the sizes that it learns know nothing of it: it waits long for what is late, and its windows
        are open from the start. Ranks that wait sleep a little, where they would ask all the time.
        """
        memory = "4096 8388608 16777216"
        settings = {"tcp_rmem": memory, "tcp_wmem": memory, "tcp_min_tso_segs": "44"}
        for name, pid in self.pids.items():
            for setting, value in settings.items():
                _in_network(pid, "sh", "-c", f"echo {value} >/proc/sys/net/ipv4/{setting}")
            source = ("10.99.0.0/24", "dev", "eth0", "src", self.addresses[name])
            _in_network(pid, "ip", "route", "replace", *source, "rto_min", "60s", "initcwnd", "20000")
        yielding = "OMPI_MCA_threads_pthreads_"
        return {f"{yielding}yield_strategy": "nanosleep", f"{yielding}nanosleep_time": str(_NAP_NS)}

    def limit(self, bytes_per_s: float) -> None:
        """Change how fast a host on the kernel's bridge sends."""
        for pid in self.pids.values():
            rate = ("rate", f"{8 * bytes_per_s:.0f}bit", "burst", "128kb", "latency", "50ms")
            _in_network(pid, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate)

    def launcher(self, ranks_per_host: int) -> tuple[str, ...]:
        """Return the words that start that many ranks on every host, when run on n1 (see `run`)."""
        hosts = ",".join(f"{name}:{ranks_per_host}" for name in self.pids)
        words = mpirun_words(find_mpi().mpirun, Family.OPEN_MPI, ranks_per_host * len(self.pids), threads=None)
        agent = ("--prtemca", "plm_ssh_agent", str(self.folder / "agent"))
        return (*words, "--host", hosts, *agent, "--map-by", "slot")

    def run(self, command: Sequence[object], *, timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `command` on n1."""
        return subprocess.run(
            [*self.enter("n1"), *map(str, command)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=environment_of_ranks() | environment,
            check=False,
        )


def environment_of_ranks() -> dict[str, str]:
    """Return the environment of ranks on such hosts."""
    return {**os.environ, **AS_ROOT, **_OPEN_MPI, "TF_CPP_MIN_LOG_LEVEL": "3"}


@contextmanager
def hosts(count: int, folder: Path, *, kernel: bool = False) -> Iterator[Lab]:
    """Yield `count` hosts, joined by a switch without delay, that are gone at the end.

    `folder` holds the lab's files. Hosts share the machine's processes and files. `kernel` has the kernel's bridge for
    a switch: of its settings it knows only the rate, but it leaves the processor to the ranks (`Lab.limit`).
    """
    names = [f"n{number + 1}" for number in range(count)]
    addresses = {name: f"10.99.0.{11 + number}" for number, name in enumerate(names)}
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    processes: list[subprocess.Popen[bytes]] = []
    try:
        pids = {}
        for name in names:
            processes.append(_start_host(name, folder))
            pids[name] = processes[-1].pid
        lab = Lab(folder=folder, pids=pids, addresses=addresses)
        _write_agent(lab)
        lab.network()
        processes.append(_start_bridge(lab) if kernel else _start_switch(lab))
        if kernel:
            _plug_into(lab, processes[-1].pid)
        yield lab
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start_host(name: str, folder: Path) -> "subprocess.Popen[bytes]":
    ready = folder / f"{name}.ready"
    ready.unlink(missing_ok=True)
    script = _SET_UP.format(name=name, hosts=folder / "hosts", ready=ready)
    words = ["unshare", "--net", "--uts", "--mount", "--ipc", "--propagation", "private", "bash", "-c", script]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    _await(ready.exists, process)
    return process


def _start_switch(lab: Lab) -> "subprocess.Popen[bytes]":
    plugs = [f"{name}={lab.pids[name]}={address}/24" for name, address in lab.addresses.items()]
    output = lab.folder / "switch.out"
    with output.open("wb") as out:
        words = [sys.executable, "-m", "tests.hosts.switch", str(lab.folder / "control"), *plugs]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, cwd=Path(__file__).parents[2])
    _await(lambda: output.read_text().startswith("ready"), process)
    return process


def _start_bridge(lab: Lab) -> "subprocess.Popen[bytes]":
    ready = lab.folder / "bridge.ready"
    script = f"ip link add switch type bridge && ip link set switch up && touch {ready} && exec sleep infinity"
    process = subprocess.Popen(["unshare", "--net", "bash", "-c", script], stdin=subprocess.DEVNULL)
    _await(ready.exists, process)
    return process


def _plug_into(lab: Lab, bridge: int) -> None:
    for name, pid in lab.pids.items():
        ends = ("eth0", "netns", str(pid), "type", "veth", "peer", "name", name, "netns", str(bridge))
        subprocess.run(["ip", "link", "add", *ends], check=True)
        _in_network(bridge, "ip", "link", "set", name, "master", "switch", "up")
        _in_network(pid, "ip", "address", "add", f"{lab.addresses[name]}/24", "dev", "eth0")
        _in_network(pid, "ip", "link", "set", "eth0", "up")


def _in_network(pid: int, *command: str) -> None:
    subprocess.run(["nsenter", "-t", str(pid), "-n", "--", *command], check=True)


def _write_agent(lab: Lab) -> None:
    """Write what the launcher calls instead of ssh: it enters the host's namespaces and runs the rest there."""
    cases = "\n".join(f"{name}) pid={pid} ;;" for name, pid in lab.pids.items())
    enter = " ".join(_enter("$pid", Path.cwd()))
    script = f'#!/bin/sh\ncase $1 in\n{cases}\nesac\nshift\nexec {enter} sh -c "$*"\n'
    agent = lab.folder / "agent"
    agent.write_text(script)
    agent.chmod(0o755)


def _enter(pid: object, folder: Path) -> list[str]:
    # Not nsenter's --wd: that folder is of this mount namespace, from where files cannot be renamed into the host's.
    return ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "--", "env", f"--chdir={folder}"]


def _await(done: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_S
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args} did not start")
        time.sleep(0.01)
