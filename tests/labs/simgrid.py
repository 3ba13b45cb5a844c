"""The same step in SimGrid's MPI simulator, as an independent check of the closed form."""

import re
import shutil
import tempfile
from pathlib import Path

import numpy as np

from harness.base.processes import run_program
from harness.prediction.network_cost import Link

ALGORITHMS = {"ring": "lr", "rabenseifner": "rab_rdb", "recursive-doubling": "rdb"}
_FLOPS = 1e9  # of a simulated host: only the ratio to the trace's numbers matters
_SLOWER = 1000.0  # SimGrid prints whole microseconds, so all costs are simulated this many times larger
_TIMEOUT_S = 300.0
_MESSAGES = 400_000  # a simulation of this many takes some seconds


def simulate_step(
    *,
    ranks: int,
    size: int,
    compute_s: float,
    link: Link,
    algorithm: str,
    jitter: tuple[float, ...] = (),
    seed: int = 0,
) -> float:
    """Return the simulated seconds of a step: `compute_s` on every rank, then an allreduce of `size` bytes.

    With `jitter` (relative compute times) every rank draws its own factor, and the mean of many steps is returned.

    Needs ``smpirun`` (Debian: ``apt-get install libsimgrid-dev``).
    """
    launcher = shutil.which("smpirun")
    assert launcher is not None
    steps = _steps(ranks, algorithm) if jitter else 1
    with tempfile.TemporaryDirectory(prefix="simgrid-") as name:
        folder = Path(name)
        _write_platform(folder, ranks, link)
        _write_trace(folder, ranks, size, compute_s * _factors(jitter, (ranks, steps), seed))
        return _run(launcher, folder, ranks, ALGORITHMS[algorithm]) / steps


def _steps(ranks: int, algorithm: str) -> int:
    """Return how many steps to simulate: many for few ranks, and never more messages than seconds can replay."""
    messages = ranks * (2 * (ranks - 1) if algorithm == "ring" else 2 * ranks.bit_length())
    return max(4, min(200, _MESSAGES // messages))


def _factors(jitter: tuple[float, ...], shape: tuple[int, int], seed: int) -> np.ndarray:
    if not jitter:
        return np.ones(shape)
    drawn: np.ndarray = np.random.default_rng(seed).choice(np.asarray(jitter), size=shape)
    return drawn


def _write_platform(folder: Path, ranks: int, link: Link) -> None:
    """Every message crosses two links, so each has half the latency."""
    latency, bandwidth = link.alpha_s * _SLOWER / 2, 1 / max(link.beta_s_per_byte * _SLOWER, 1e-15)
    (folder / "platform.xml").write_text(
        "<?xml version='1.0'?>\n"
        '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
        '<platform version="4.1">\n'
        f'<cluster id="c" prefix="h" suffix="" radical="0-{ranks - 1}" speed="{_FLOPS}f" bw="{bandwidth}Bps" '
        f'lat="{latency}s" sharing_policy="SPLITDUPLEX"/>\n</platform>\n'
    )
    (folder / "hosts").write_text("".join(f"h{rank}\n" for rank in range(ranks)))


def _write_trace(folder: Path, ranks: int, size: int, seconds: np.ndarray) -> None:
    for rank in range(ranks):
        lines = [f"{rank} init"]
        for step in seconds[rank]:
            lines += [f"{rank} compute {step * _SLOWER * _FLOPS:.0f}", f"{rank} allreduce {size} 0"]
        (folder / f"trace{rank}").write_text("\n".join([*lines, f"{rank} finalize", ""]))
    (folder / "traces").write_text("".join(f"{folder}/trace{rank}\n" for rank in range(ranks)))


def _run(launcher: str, folder: Path, ranks: int, algorithm: str) -> float:
    command = [launcher, "-np", str(ranks), "-platform", "platform.xml", "-hostfile", "hosts", "-replay", "traces"]
    # No correction for TCP: neither its window nor its bandwidth and latency factors.
    command += [
        "--cfg=network/model:CM02",
        "--cfg=network/TCP-gamma:1e20",
        f"--cfg=smpi/allreduce:{algorithm}",
        "--log=root.thres:info",
    ]
    done = run_program(command, limit_s=_TIMEOUT_S, folder=folder)
    found = re.findall(r"Simulation time ([0-9.eE+-]+)", done.out + done.err)
    assert done.code == 0 and found, f"SimGrid failed on {ranks} ranks: {done.last_error}"
    return float(found[-1]) / _SLOWER
