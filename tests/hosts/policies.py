"""Seconds to equal accuracy under several sync policies: ``python -m tests.hosts.policies``; needs root.

Real rows on emulated hosts of one rank each, behind the kernel's bridge at a limited rate. Every policy trains on as
many ranks of this host (`harness sweep`), which says how many epochs it needs. Then the first seeds (--timed) train
between the hosts, one policy after the other; where that lasts longer than --most seconds, the last epoch trained
stands for those that are left, and the other seeds' epochs take what those of the timed ones took, in turn. More hosts
than cores share these, here and between the hosts. The accuracies must be those of this host: to the bit on two hosts,
and within the order of sums on more. Results are kept, and the same command goes on from them. Prints a Markdown table
for each rate and draws them (--figure).
"""

import argparse
import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binom

from harness.analysis.read_results import Loaded, load_sweep
from harness.base.command_context import Context
from harness.datasets import locate
from harness.report.svg import STYLE, mark
from harness.schema.claim import EXPERIMENTS
from harness.schema.layout import Layout
from harness.schema.presets import resolve
from harness.schema.record import read_run
from harness.schema.sweep import Sweep
from harness.sweep.execute import run_sweep
from tests.hosts.lab import Lab, hosts
from tests.hosts.predictions import GBIT
from tests.mpi.launch import end_warm, serve_warm

POLICIES = "gradients,powersgd:2,weights:10,weights:epoch,diloco:50"
SLACK = 0.005  # of test accuracy below that of the first policy

HEADING = (
    "| hosts | Gbit/s | policy | epochs to the target | seconds to the target | the first's over it | "
    "samples/s | final accuracy |\n|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A policy as it trained on this host: test accuracies [seeds, epochs], and the epochs until the target by seed.

    These are infinite where it is not reached.
    """

    sync: str
    loaded: Loaded
    curves: pd.DataFrame
    needed: np.ndarray


def here(name: str, syncs: Sequence[str], ranks: int, seeds: int, data: Path, results: Path) -> list[Trained]:
    """Return every policy's launches on `ranks` ranks of this host, those that are missing made now."""
    one, found = EXPERIMENTS[name], []
    many = ranks > (os.cpu_count() or 1)
    samples = one.rows if one.model == "cnn" else None  # a tenth: a CNN's row costs a hundred times a DNN's
    for sync in syncs:
        workload = resolve(dataset=one.dataset, model=one.model, sync=sync, data="real", samples=samples)
        sweep = Sweep(
            workload=workload,
            layouts=(Layout(nodes=ranks),),
            repeats=seeds,
            data_id=locate(workload, data).data_id,
            oversubscribe=many,
        )
        loaded = load_sweep(run_sweep(sweep, Context(data_dir=data, results=results)))
        if many:  # more hosts than cores share these, here and between the hosts alike
            loaded = replace(loaded, runs=tuple(replace(run, invalid=()) for run in loaded.runs))
        found.append((loaded, loaded.epochs.pivot(index="repeat", columns="epoch", values="test_accuracy")))
    target = float(found[0][1].iloc[:, -1].median()) - SLACK
    print(f"{name}: {syncs[0]} ends at {100 * (target + SLACK):.2f} %, the target is {100 * target:.2f} %")
    return [
        Trained(
            sync=sync,
            loaded=loaded,
            curves=curves,
            needed=np.where((curves >= target).any(axis=1), 1 + (curves >= target).to_numpy().argmax(axis=1), np.inf),
        )
        for sync, (loaded, curves) in zip(syncs, found, strict=True)
    ]


def between(lab: Lab, python: str, trained: Trained, seed: int, most: float, data: Path, record: Path) -> pd.Series:
    """Return the seconds of the epochs that a policy trained between the lab's hosts, from `record` where it is kept.

    Raises:
        AssertionError: an epoch ended at another accuracy than on this host.
    """
    point = trained.loaded.runs[0].point
    workload = point.workload
    words = ("--dataset", workload.dataset, "--model", workload.model, "--data-kind", "real", "--data-dir", data)
    words += ("--sync", trained.sync, "--seed", seed, "--seconds", most, "--record", record)
    words += ("--samples", workload.samples) if workload.samples else ()
    for _ in range(2):  # what other work on this machine has disturbed is trained once more
        if record.exists() and read_run(record).invalid and not point.oversubscribe:
            shutil.rmtree(record)
        if not record.exists():
            finished = lab.run([*lab.launcher(1), python, "-m", "harness", "train", *words], timeout=900)
            assert finished.returncode == 0, finished.stderr[-3000:]
    run = read_run(record)
    if run.invalid and not point.oversubscribe:
        print(f"{trained.sync}, seed {seed}: its times are not valid: {run.invalid[0]}", flush=True)
    epochs = run.epochs
    there = [epoch.test_accuracy for epoch in epochs]
    alone = trained.curves.loc[seed].iloc[: len(there)]
    assert np.allclose(there, alone, rtol=0, atol=SLACK if point.layout.ranks > 2 else 0), (trained.sync, seed, there)
    return pd.Series([max(epoch.seconds) for epoch in epochs])


def until(seconds: pd.Series, needed: float) -> float:
    """Return the seconds of `needed` epochs: the last one stands for those that were not trained."""
    made = min(len(seconds), needed)
    more = (needed - made) * seconds.iloc[-1] if needed > made else 0.0
    return float(seconds.iloc[: int(made)].sum() + more)


def middle(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its interval of at least 95 % by order statistics; a seed without the target is infinite.

    The interval (Conover 1999, "Practical Nonparametric Statistics", 3.2) needs 6 values; of fewer it is not a number.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    out = int(binom.ppf(0.025, len(ordered), 0.5))  # so many on either side, less one, are left out
    ends = (ordered[out - 1], ordered[-out]) if out else (math.nan, math.nan)
    return float(np.median(ordered)), float(ends[0]), float(ends[1])


def text(values: Sequence[float]) -> str:
    """Return `middle` in words."""
    median, low, high = middle(values)
    missed = int(np.isinf(values).sum())
    if not math.isfinite(median):
        return f"not reached by {missed} of {len(values)}"
    span = "" if math.isnan(low) else f" ({low:.3g} to {high:.3g})" if math.isfinite(high) else f" (at least {low:.3g})"
    return f"{median:.3g}{span}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A policy's seconds to the target at one rate: their median with its interval."""

    sync: str
    seconds: tuple[float, float, float]


def table(
    trained: Sequence[Trained],
    ranks: int,
    rate: float,
    seconds: dict[str, list[pd.Series]],
    rows: int,
) -> list[Found]:
    """Print a network's rows; return what was found of each policy."""
    found = []
    times = {
        one.sync: [until(*pair) for pair in zip(itertools.cycle(seconds[one.sync]), one.needed, strict=False)]
        for one in trained
    }
    for one in trained:
        own, first = times[one.sync], times[trained[0].sync]
        result = Found(sync=one.sync, seconds=middle(own))
        pairs = [(a, b) for a, b in zip(first, own, strict=True) if math.isfinite(a) or math.isfinite(b)]
        ratio = text([a / b for a, b in pairs]) if math.isfinite(result.seconds[0]) else ""
        needed = "/".join(f"{count:g}" for count in one.needed)
        fast = rows / float(np.median(pd.concat(seconds[one.sync])))
        cells = [str(ranks), f"{rate:g}", f"`{one.sync}`", needed, text(own), ratio]
        cells += [f"{fast:,.0f}", f"{100 * one.curves.iloc[:, -1].median():.2f} %"]
        print(f"| {' | '.join(cells)} |", flush=True)
        found.append(result)
    best = min(found, key=lambda one: one.seconds[0])
    print(f"\nfastest: `{best.sync}`\n")
    return found


def paint(axes: Axes, found: dict[float, list[Found]]) -> None:
    """Draw seconds to the target against the network's rate: a marker for each policy."""
    rates, missed = sorted(found), []
    for number, one in enumerate(found[rates[0]]):
        look, own = mark(number), [found[rate][number] for rate in rates]
        median, low, high = np.array([each.seconds for each in own]).T
        if not np.isfinite(median).all():
            missed.append(one.sync)
            median = low = high = np.full(len(rates), np.nan)
        ends = np.nan_to_num([median - low, np.where(np.isfinite(high), high, median * 10) - median])
        axes.errorbar(rates, median, yerr=ends, fmt=look.marker, color=look.colour, label=one.sync, markersize=4)
    if missed:
        axes.text(
            0.97, 0.95, f"not reached:\n{', '.join(missed)}", ha="right", va="top", transform=axes.transAxes, fontsize=7
        )
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()


def figure(found: dict[tuple[int, str], dict[float, list[Found]]], file: Path) -> None:
    """Draw a panel for every number of hosts (row) and workload (column)."""
    rows, columns = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    with matplotlib.rc_context(STYLE):
        whole = Figure(figsize=(max(6.4, 2.4 * len(columns)), 0.7 + 2.1 * len(rows)), layout="constrained")
        panels = whole.subplots(len(rows), len(columns), squeeze=False, sharex=True)
        panels[-1, len(columns) // 2].set_xlabel("Network between the hosts, Gbit/s")
        for axes, (count, name) in zip(panels.flat, itertools.product(rows, columns), strict=True):
            paint(axes, found[count, name])
            axes.set_title(f"{name.upper()}, {count} hosts", fontsize=9)
        whole.supylabel("Seconds to the target accuracy", fontsize=9)
        handles, labels = panels.flat[0].get_legend_handles_labels()
        whole.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        whole.savefig(file, dpi=200)


def measured(given: argparse.Namespace, name: str, count: int) -> dict[float, list[Found]]:
    """Print a workload's tables on so many hosts; return what was found, by rate."""
    trained = here(name, given.policies.split(","), count, given.seeds, given.data_dir, given.results)
    found = {}
    with tempfile.TemporaryDirectory() as folder, hosts(count, Path(folder), kernel=True) as lab:
        python, servers = serve_warm(Path(folder), {host: lab.enter(host) for host in lab.pids})
        for rate in map(float, given.rates.split(",")):
            lab.limit(rate * GBIT)
            place = given.results / "between" / f"{name}-{count}-{rate:g}"
            seconds: dict[str, list[pd.Series]] = {one.sync: [] for one in trained}
            for seed in trained[0].curves.index[: given.timed]:
                for one in trained:
                    record = (place / f"{one.sync.replace(':', '-')}-{seed}").resolve()
                    seconds[one.sync].append(between(lab, python, one, seed, given.most, given.data_dir, record))
            print(f"\n{HEADING}")
            rows = sum(rank.rows for rank in trained[0].loaded.runs[0].ranks)
            found[rate] = table(trained, count, rate, seconds, rows)
        end_warm(servers)
    return found


def main() -> None:
    """Print the tables and what they have in common; draw the figure."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.policies", description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="mnist-dnn", help=f"of {', '.join(EXPERIMENTS)} [default: mnist-dnn]")
    parser.add_argument("--hosts", default="2", help="[default: 2]")
    parser.add_argument("--rates", default="0.1,1,10", help="Gbit/s [default: 0.1,1,10]")
    parser.add_argument("--policies", default=POLICIES, help="the first is what the others are compared with")
    parser.add_argument("--seeds", type=int, default=3, help="[default: 3]")
    parser.add_argument("--timed", type=int, default=3, help="of them between the hosts [default: 3]")
    parser.add_argument("--most", type=float, default=30.0, help="seconds of a launch's training [default: 30]")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the original files")
    parser.add_argument("--results", type=Path, default=Path("results/policies"), help="[default: results/policies]")
    parser.add_argument("--figure", type=Path, help="PNG file")
    given = parser.parse_args()
    found = {
        (count, name): measured(given, name, count)
        for count in map(int, given.hosts.split(","))
        for name in given.workloads.split(",")
    }
    if given.figure:
        figure(found, given.figure)


if __name__ == "__main__":
    main()
