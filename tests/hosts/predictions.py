"""Predictions for counts beyond the machine against as many ranks: ``python -m tests.hosts.predictions``; needs root.

What `harness sweep` says from launches on 1 and 2 ranks here, and from a network that is probed
between 2 emulated hosts, is compared with 4 to 32 ranks on an emulated host each. Their processes, MPI, sums and waits
are real. Their computation is not: a rank sleeps for a recorded step's time (`tests.hosts.sleeping`). So that a few
cores carry them all, time passes slower than what is emulated: sleeps, delays and rates are stretched by one factor,
which all times are divided by (time dilation: Gupta et al., NSDI 2006). Whether it is enough shows in how long the
cores were idle. Prints a Markdown table for each network.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import Scaling, scale
from harness.analysis.sweep_choice import choose_sweep
from harness.analysis.sync_calls import read_calls
from harness.base.command_context import Context
from harness.base.provenance import describe_machine
from harness.datasets import locate
from harness.prediction.extrapolation import NETWORK, extrapolate, measured_base
from harness.prediction.network_cost import Uncertain, calls, probe_links
from harness.probe.measuring_ranks import MessageSeries, ProbePlan, ProbeResult
from harness.probe.message_fit import fit_launches
from harness.schema.claim import EXPERIMENTS
from harness.schema.layout import Layout
from harness.schema.message_cost import PROBE_SCHEMA, MessageCosts, Probe, Setting
from harness.schema.presets import resolve
from harness.schema.record import decode, encode, read_run
from harness.schema.sweep import Sweep
from harness.sweep.execute import run_sweep
from harness.sweep.site import JobRequest
from harness.sweep.submission_settings import Submission
from tests.hosts.lab import Lab, hosts
from tests.hosts.sleeping import Plan, Steps, Training

GBIT = 1e9 / 8  # bytes a second
ROWS, CNN_ROWS, EPOCHS, REPEATS = 32 * 64 * 8, 32 * 64, 3, 3
PROBED = (8, 1024, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 2**20)  # bytes
# Time passes so much slower that a probed message, or a step, lasts so many seconds, and a step longer for every byte
# of every rank: what two cores do for it, and the naps of its ranks, are a small part of that.
MESSAGE_S, STEP_S, BYTE_S = 0.1, 0.8, 10e-9

HEADING = (
    "| workload | emulated ranks | ms a step (slept, waited, summed) | times slower | cores idle | the sweep's line | "
    "error |\n|---|---|---|---|---|---|---|"
)


def recorded(name: str, results: Path) -> Loaded:
    """Return launches of a workload on 1 and 2 ranks of this machine, in turns; made where they are missing."""
    one = EXPERIMENTS[name]
    rows = CNN_ROWS if one.model == "cnn" else ROWS
    workload = resolve(dataset=one.dataset, model=one.model, samples=rows, epochs=EPOCHS, data="synthetic")
    layouts = (Layout(nodes=1), Layout(nodes=2))
    sweep = Sweep(workload=workload, layouts=layouts, repeats=REPEATS, data_id=locate(workload, None).data_id)
    kept = choose_sweep(results, lambda study: study.sweep.workload == workload, every_code=True)
    if kept is not None:  # a step is a step, whichever code made it
        return kept.loaded
    in_turns = Submission(request=JobRequest(mode="turns"))
    return load_sweep(run_sweep(sweep, Context(results=results), in_turns))


def relative_steps(loaded: Loaded) -> np.ndarray:
    """Return what steps on two ranks computed, over the mean of their launch; slowdowns of both ranks included."""
    found = []
    for run in (run for run in loaded.valid if len(run.ranks) > 1):
        folder = loaded.folder / run.point.folder
        for epoch in read_calls(folder, read_run(folder)):
            steps = (epoch.entry[1:] - epoch.exit[:-1])[np.diff(epoch.step) == 1].ravel()
            found.append(steps / steps.mean())
    return np.concatenate(found)


def probed(lab: Lab, folder: Path, rate: float, delay_s: float) -> Probe:
    """Return what messages between the lab's first two hosts take."""
    two, series = first(lab, 2), list[MessageSeries]()
    for size in PROBED:
        slow = max(1.0, MESSAGE_S / (delay_s + size / rate))
        lab.network(delay_s=slow * delay_s, bytes_per_s=rate / slow)
        plan = ProbePlan(sizes=(size,), samples=6, budget_s=1.0, reductions=())
        answer = launched(two, "harness.probe.measuring_ranks", plan, folder, ProbeResult)
        series += [replace(one, seconds=tuple(seconds / slow for seconds in one.seconds)) for one in answer.series]
    return as_probe(replace(answer, series=tuple(series)))


def as_probe(answer: ProbeResult) -> Probe:
    """Return what `harness probe` would keep of what its ranks have measured."""
    costs = MessageCosts(setting=Setting(name="default", mca={}), costs=fit_launches([answer.series]))
    return Probe(
        schema=PROBE_SCHEMA,
        measured=datetime.now(UTC),
        machine=describe_machine(gpus=()),
        launcher="",
        mpi_library=answer.mpi_library,
        hosts=answer.hosts,
        by_setting=(costs,),
    )


def first(lab: Lab, count: int) -> Lab:
    """Return the lab of the first so many hosts."""
    return replace(lab, pids=dict(list(lab.pids.items())[:count]))


def launched(lab: Lab, module: str, plan: object, folder: Path, kind: Any) -> Any:
    """Return what the ranks of `module`, one on every host, answer to the `plan`."""
    plan_file, answer = folder / "plan.json", folder / "answer.json"
    plan_file.write_bytes(encode(plan))
    answer.unlink(missing_ok=True)
    words = [*lab.launcher(1), sys.executable, "-m", module, plan_file, answer]
    finished = lab.run(words, timeout=900, **lab.slowed_down())
    assert answer.exists(), finished.stderr[-3000:]
    return decode(answer.read_bytes(), kind, answer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """A predicted step in seconds, with its band."""

    step_s: float
    low_s: float
    high_s: float

    def error(self, steps: Steps) -> float:
        """Return predicted over emulated less 1."""
        return self.step_s / steps.step_s - 1

    def covers(self, steps: Steps) -> bool:
        """Tell whether the band holds the emulated step."""
        return self.low_s <= steps.step_s <= self.high_s

    def __str__(self) -> str:
        return f"{1e3 * self.step_s:.3g} ({1e3 * self.low_s:.3g} to {1e3 * self.high_s:.3g})"


class Measured:
    """One workload's launches here, and what they say of its steps."""

    def __init__(self, name: str, results: Path) -> None:
        self.name, self.loaded = name, recorded(name, results)
        scaling = scale(launch_frame(self.loaded.valid, self.loaded.epochs))
        assert scaling is not None
        self.scaling: Scaling = scaling
        self.base = measured_base(self.loaded)
        self.alone_s = scaling.base.seconds / (scaling.base.rows / self.base.workload.batch(1))  # a step on one rank
        self.compute_s = tuple((self.alone_s * relative_steps(self.loaded)).tolist())

    def training(self, ranks: int, network: Uncertain, rate: float, delay_s: float, seconds: float) -> Training:
        """Return steps that take about so many seconds here, by `network`."""
        sum_s = float(self.base.sums(np.array([float(ranks)]), network.value)[0])
        lasting = STEP_S + ranks * self.base.bytes * BYTE_S
        return Training(
            compute_s=self.compute_s,
            messages=tuple(map(int, calls(self.base.tensors))),
            steps=max(8, round(seconds / lasting)),
            slow=max(1.0, lasting / (self.alone_s + sum_s)),
            delay_s=delay_s,
            bytes_per_s=rate,
        )

    def said(self, counts: Sequence[int], network: Uncertain) -> Iterator[Said]:
        """Yield what the sweep's line says of each count."""
        series, why = extrapolate(self.loaded, self.scaling, [Layout(nodes=count) for count in counts], network)
        points = next((one.points for one in series if one.where == NETWORK), ())
        assert points, why
        for point in points:
            alone_s = self.alone_s * point.ranks
            yield Said(
                step_s=alone_s / point.speedup,
                low_s=alone_s / point.speedup_interval.high,
                high_s=alone_s / point.speedup_interval.low,
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What was emulated of a network: a probe between two hosts, and steps by ``WORKLOAD RANKS``."""

    probe: Probe
    steps: dict[str, Steps]

    @property
    def links(self) -> tuple[Uncertain, str]:
        """What its links cost, and a sentence."""
        return probe_links(self.probe)


def emulated(
    workloads: Sequence[Measured], counts: Sequence[int], rate: float, delay_s: float, seconds: float, file: Path
) -> Kept:
    """Return the steps of every workload and count, those that `file` has not yet emulated and kept there."""
    kept = decode(file.read_bytes(), Kept, file) if file.exists() else None
    wanted = {
        count: [one for one in workloads if not kept or f"{one.name} {count}" not in kept.steps] for count in counts
    }
    most = max((count for count, missing in wanted.items() if missing), default=0)
    with tempfile.TemporaryDirectory() as name, hosts(max(2, most), Path(name)) as lab:
        if kept is None:
            kept = Kept(probe=probed(lab, Path(name), rate, delay_s), steps={})
            file.write_bytes(encode(kept))
        for count, missing in wanted.items():
            trainings = tuple(one.training(count, kept.links[0], rate, delay_s, seconds) for one in missing)
            if trainings:
                lab.network()  # the launcher's messages have no part in it
                plan = Plan(folder=name, trainings=trainings)
                found = launched(first(lab, count), "tests.hosts.sleeping", plan, Path(name), tuple[Steps, ...])
                kept.steps.update(zip((f"{one.name} {count}" for one in missing), found, strict=True))
                file.write_bytes(encode(kept))
    return kept


Row = tuple[str, int, Steps, Said]


def score(workloads: Sequence[Measured], counts: Sequence[int], kept: Kept) -> list[Row]:
    """Return every workload and count: the emulated step, and what the sweep's line says of it."""
    return [
        (one.name, count, kept.steps[f"{one.name} {count}"], said)
        for one in workloads
        for count, said in zip(counts, one.said(counts, kept.links[0]), strict=True)
    ]


def tell(row: Row) -> None:
    """Print a line of the table."""
    name, count, steps, said = row
    parts = ", ".join(f"{1e3 * part:.3g}" for part in (steps.compute_s, steps.wait_s, steps.sum_s))
    cells = [name, str(count), f"{1e3 * steps.step_s:.3g} ± {1e3 * steps.error_s:.1g} ({parts})"]
    cells += [f"{steps.slow:.0f}", f"{100 * steps.idle:.0f} %"]
    cells += [str(said), f"{100 * said.error(steps):+.1f} %{'' if said.covers(steps) else ', outside'}"]
    print(f"| {' | '.join(cells)} |")


def sum_up(rows: Sequence[Row], counts: Sequence[int]) -> None:
    """Print errors and how many bands hold what was emulated."""
    for group in (*([count] for count in counts), counts):
        found = [(row[3], row[2]) for row in rows if row[1] in group]
        off = median(abs(said.error(steps)) for said, steps in found)
        held = sum(said.covers(steps) for said, steps in found)
        print(
            f"{', '.join(map(str, group))} ranks: median error {100 * off:.1f} %, "
            f"{held} of {len(found)} bands hold the emulated step"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.predictions", description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(EXPERIMENTS), help="such as mnist-dnn [default: all]")
    parser.add_argument("--ranks", default="4,8,16,32", help="counts [default: 4,8,16,32]")
    parser.add_argument("--networks", default="1:50,10:10", help="GBIT/S:MICROSECONDS, ... [default: 1:50,10:10]")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="of every workload and count, 8 steps at least [default: 8]"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="where launches on 1 and 2 ranks are")
    options = parser.parse_args()
    counts = [int(count) for count in options.ranks.split(",")]
    workloads = [Measured(name, options.results) for name in options.workloads]
    for network in options.networks.split(","):
        gbits, microseconds = map(float, network.split(":"))
        file = options.results / f"emulated-{gbits:g}-{microseconds:g}.json"
        kept = emulated(workloads, counts, gbits * GBIT, microseconds / 1e6, options.seconds, file)
        print(f"\n{gbits:g} Gbit/s and {microseconds:g} us: {kept.links[1]}\n\n{HEADING}")
        rows = score(workloads, counts, kept)
        for row in rows:
            tell(row)
        print()
        sum_up(rows, counts)


if __name__ == "__main__":
    main()
