"""Seconds to equal accuracy under several sync policies: ``python -m tests.hosts.policies``; needs root.

Real rows on emulated hosts of one rank each, behind the kernel's bridge at a limited rate. What is predicted is
predicted first: every policy trains on as many ranks of this host (`harness sweep`), which says how many epochs it
needs and what a step computes; the closed form of `harness predict` makes seconds of them and the stated rate. Then
the first seeds (--timed) train between the hosts, one policy after the other; where that lasts longer than --most
seconds, the last epoch trained stands for those that are left, and the other seeds' epochs take what those of the timed
ones took, in turn. The accuracies must be those of this host, to the bit. Results are kept, and the same command goes
on from them. Prints a Markdown table for each rate and draws them (--figure).
"""

import argparse
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import t as student

from harness.analysis.read_results import Loaded, load_sweep
from harness.prediction.advice import seconds_over
from harness.prediction.network_cost import Levels, Link, Uncertain
from harness.prediction.step_model import measured_base
from harness.report.svg import draw, mark
from harness.schema.claim import EXPERIMENTS
from harness.schema.presets import resolve
from harness.schema.record import read_run
from harness.schema.sweep import Layout
from harness.sweep.execute import run_sweep
from harness.sweep.plan import build_sweep
from tests.hosts.lab import Lab, hosts
from tests.hosts.predictions import GBIT
from tests.mpi.launch import end_warm, serve_warm

POLICIES = "gradients,powersgd:2,weights:10,weights:epoch,post-local:1:10,diloco:50"
SLACK = 0.005  # of test accuracy below that of the first policy
ALPHA_S = 2e-5  # of a message between such hosts

HEADING = (
    "| hosts | Gbit/s | policy | epochs to the target | seconds to the target | the first's over it | predicted | "
    "error | rows/s | final accuracy |\n|---|---|---|---|---|---|---|---|---|---|"
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

    def predicted(self, ranks: int, network: Uncertain) -> float:
        """Return the mean seconds over the seeds until the target over a network."""
        if not np.isfinite(self.needed).all():
            return math.inf
        return float(seconds_over(measured_base(self.loaded), self.needed, ranks, network)[1].mean())


def here(name: str, syncs: Sequence[str], ranks: int, seeds: int, data: Path, results: Path) -> list[Trained]:
    """Return every policy's launches on `ranks` ranks of this host, those that are missing made now."""
    one, found = EXPERIMENTS[name], []
    many = ranks > (os.cpu_count() or 1)
    for sync in syncs:
        workload = resolve(dataset=one.dataset, model=one.model, sync=sync, data="real")
        sweep = build_sweep(workload, layouts=(Layout(nodes=ranks),), repeats=seeds, data_dir=data, oversubscribe=many)
        loaded = load_sweep(run_sweep(sweep, data_dir=data, results=results))
        found.append((loaded, loaded.epochs.pivot(index="repeat", columns="epoch", values="test_accuracy")))
    target = float(found[0][1].iloc[:, -1].median()) - SLACK
    print(f"{name}: {syncs[0]} ends at {100 * (target + SLACK):.2f} %, the target is {100 * target:.2f} %")
    return [
        Trained(
            sync=sync, loaded=loaded, curves=curves,
            needed=np.where((curves >= target).any(axis=1), 1 + (curves >= target).to_numpy().argmax(axis=1), np.inf),
        )
        for sync, (loaded, curves) in zip(syncs, found, strict=True)
    ]  # fmt: skip


def between(lab: Lab, python: str, trained: Trained, seed: int, most: float, data: Path, record: Path) -> pd.Series:
    """Return the seconds of the epochs that a policy trained between the lab's hosts, from `record` where it is kept.

    Raises:
        AssertionError: an epoch ended at another accuracy than on this host.
    """
    if record.exists() and read_run(record).invalid:
        shutil.rmtree(record)
    if not record.exists():
        workload = trained.loaded.runs[0].point.workload
        words = ("--dataset", workload.dataset, "--model", workload.model, "--data-kind", "real", "--data-dir", data)
        words += ("--sync", trained.sync, "--seed", seed, "--seconds", most, "--record", record)
        finished = lab.run([*lab.launcher(1), python, "-m", "harness", "train", *words], timeout=900)
        assert finished.returncode == 0, finished.stderr[-3000:]
    run = read_run(record)
    if run.invalid:
        print(f"{trained.sync}, seed {seed}: its times are not valid: {run.invalid[0]}", flush=True)
    epochs = run.epochs
    there = [epoch.test_accuracy for epoch in epochs]
    assert there == list(trained.curves.loc[seed].iloc[: len(there)]), (trained.sync, seed, there)
    return pd.Series([max(epoch.seconds) for epoch in epochs])


def until(seconds: pd.Series, needed: float) -> float:
    """Return the seconds of `needed` epochs: the last one stands for those that were not trained."""
    made = min(len(seconds), needed)
    more = (needed - made) * seconds.iloc[-1] if needed > made else 0.0
    return float(seconds.iloc[: int(made)].sum() + more)


def interval(values: Sequence[float]) -> str:
    """Return the geometric mean of `values` with Student's 95 % interval over them, as text."""
    logs = np.log(values)
    if not np.isfinite(logs).all():
        return f"not reached by {np.isinf(logs).sum()} of {len(logs)}"
    reach = student.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return f"{np.exp(logs.mean()):.3g} ({np.exp(logs.mean() - reach):.3g} to {np.exp(logs.mean() + reach):.3g})"


def table(trained: Sequence[Trained], ranks: int, rate: float, seconds: dict[str, list[pd.Series]], network: Uncertain,
          rows: int) -> list[tuple[str, float, float]]:  # fmt: skip
    """Print a network's rows; return each policy with its mean seconds to the target, measured and predicted."""
    found = []
    times = {
        one.sync: [until(*pair) for pair in zip(cycle(seconds[one.sync]), one.needed, strict=False)] for one in trained
    }
    for one in trained:
        own, first = times[one.sync], times[trained[0].sync]
        said = one.predicted(ranks, network)
        ratio = interval([a / b for a, b in zip(first, own, strict=True)])
        needed = "/".join(f"{count:g}" for count in one.needed)
        middle = float(np.exp(np.mean(np.log(own))))
        error = f"{100 * (said / middle - 1):+.0f} %" if math.isfinite(middle) else ""
        fast = rows / float(np.median(pd.concat(seconds[one.sync])))
        cells = [str(ranks), f"{rate:g}", f"`{one.sync}`", needed, interval(own), ratio, f"{said:.3g}", error]
        cells += [f"{fast:,.0f}", f"{100 * one.curves.iloc[:, -1].median():.2f} %"]
        print(f"| {' | '.join(cells)} |", flush=True)
        found.append((one.sync, middle, said))
    best, named = (min(found, key=lambda row: row[place])[0] for place in (1, 2))
    errors = [abs(row[2] / row[1] - 1) for row in found if math.isfinite(row[1])]
    print(f"\nfastest: `{best}`, predicted `{named}`; median error {100 * np.median(errors):.0f} %\n")
    return found


def paint(axes: Axes, found: dict[float, list[tuple[str, float, float]]]) -> None:
    """Draw seconds to the target against the network's rate: measured as markers, predicted as lines."""
    for number, sync in enumerate(next(iter(found.values()))):
        look, rates = mark(number), sorted(found)
        measured, said = ([found[rate][number][place] for rate in rates] for place in (1, 2))
        axes.plot(rates, measured, look.marker, color=look.colour, label=sync[0])
        axes.plot(rates, said, color=look.colour, linestyle=look.dashes, linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="Network between the hosts, Gbit/s", ylabel="Seconds to the target")
    axes.set_xticks(sorted(found), [f"{rate:g}" for rate in sorted(found)])
    axes.minorticks_off()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.policies", description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="mnist-dnn", choices=list(EXPERIMENTS), help="[default: mnist-dnn]")
    parser.add_argument("--hosts", type=int, default=2, help="[default: 2]")
    parser.add_argument("--rates", default="0.1,1,10", help="Gbit/s [default: 0.1,1,10]")
    parser.add_argument("--policies", default=POLICIES, help="the first is what the others are compared with")
    parser.add_argument("--seeds", type=int, default=3, help="[default: 3]")
    parser.add_argument("--timed", type=int, default=3, help="of them between the hosts [default: 3]")
    parser.add_argument("--most", type=float, default=30.0, help="seconds of a launch's training [default: 30]")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the original files")
    parser.add_argument("--results", type=Path, default=Path("results/policies"), help="[default: results/policies]")
    parser.add_argument("--figure", type=Path, help="PNG file")
    given = parser.parse_args()
    trained = here(given.workload, given.policies.split(","), given.hosts, given.seeds, given.data_dir, given.results)
    found = {}
    with tempfile.TemporaryDirectory() as name, hosts(given.hosts, Path(name), kernel=True) as lab:
        python, servers = serve_warm(Path(name), {host: lab.enter(host) for host in lab.pids})
        for rate in map(float, given.rates.split(",")):
            lab.limit(rate * GBIT)
            link = Link(alpha_s=ALPHA_S, beta_s_per_byte=1 / (rate * GBIT))
            place = given.results / "between" / f"{given.workload}-{given.hosts}-{rate:g}"
            seconds: dict[str, list[pd.Series]] = {one.sync: [] for one in trained}
            for seed in trained[0].curves.index[: given.timed]:
                for one in trained:
                    record = (place / f"{one.sync.replace(':', '-')}-{seed}").resolve()
                    seconds[one.sync].append(between(lab, python, one, seed, given.most, given.data_dir, record))
            print(f"\n{HEADING}")
            rows = sum(rank.rows for rank in trained[0].loaded.runs[0].ranks)
            found[rate] = table(trained, given.hosts, rate, seconds, Uncertain.exact(Levels(network=link)), rows)
        end_warm(servers)
    if given.figure:
        picture = draw("policies", "Seconds to equal accuracy by sync policy", lambda axes: paint(axes, found))
        given.figure.write_bytes(picture.file("png"))


if __name__ == "__main__":
    main()
