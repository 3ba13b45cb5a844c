"""Every kind of page that the harness writes, made once, with the JSON that the command printed of it."""

import json
import shutil
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from harness.cli import main
from harness.probe.probe_store import write_probe
from harness.regression.history import history_of
from harness.regression.session_check import check_sessions
from harness.report.answer import Answer
from harness.report.bench_answer import bench_answer
from harness.report.history_answer import history_answer
from harness.report.html_pages import write_page
from harness.report.probe_answer import best_settings, probe_answer
from harness.report.session_answer import session_answer
from harness.schema.layout import Layout
from harness.schema.sweep import Skipped
from tests.labs.bench_records import make_bench
from tests.labs.factories import START, make_launch, make_point, write_failure, write_run, write_study
from tests.labs.policy_sweeps import learning
from tests.labs.probes import make_probe
from tests.labs.simulated_sessions import SimulatedMachine, simulate_sessions

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenPage:
    """A page on the disk and the document that ``--json`` printed, empty where no command made it."""

    path: Path
    document: dict[str, Any] = field(default_factory=dict)


def write_results(results: Path) -> None:
    """Write a measured sweep, one with all that goes wrong, and two of one workload by two policies."""
    shutil.copytree(SWEEP, results / SWEEP.name)
    faulty = results / "faulty"
    write_study(faulty, skipped=(Skipped(layout=Layout(nodes=4), reason="4 ranks need 4 cores, this machine has 2"),))
    for repeat in range(3):
        later = START + timedelta(days=1, minutes=repeat)
        write_run(faulty, make_launch(1, repeat, 2.0 + 0.1 * repeat, started=later))
        write_run(faulty, make_launch(2, repeat, 1.25 + 0.05 * repeat, started=later))
    write_run(faulty, make_launch(2, 3, 77.0, invalid=("other processes kept 1.4 cores busy",)))
    write_failure(faulty, make_point(2, 5), "rank 1: the shard is empty")
    for sync, seconds, accuracies in (
        ("gradients", 1.2, (0.90, 0.95)),
        ("weights:epoch", 1.0, (0.80, 0.88)),
    ):
        folder = results / sync.replace(":", "-")
        write_study(folder, sync=sync)
        for repeat in range(6):
            write_run(folder, learning(1, repeat, 2.0, (0.90, 0.95), sync))
            write_run(folder, learning(2, repeat, seconds, accuracies, sync))


COMMANDS = {
    "sweep": ("report", SWEEP.name),
    "faulty sweep": ("report", "faulty"),
    "explain": ("explain", SWEEP.name),
    "compare": ("compare", "gradients", "faulty"),
    "policies": ("policies", "gradients", "weights-epoch"),
    "claims": ("claims",),
}
OTHERS = ("bench", "probe", "history", "check", "index", "glossary")
KINDS = (*COMMANDS, *OTHERS)


def probe_of(results: Path) -> Answer:
    """Return the answer of a probe of two settings, which is written into `results`."""
    probe = make_probe({"default": (1e-6, 1e-10), "other": (1e-5, 1e-10)})
    folder = write_probe(probe, results)
    return probe_answer(probe.probe, folder, best_settings(probe.probe, ["mnist-dnn"]))


def answers_over_time() -> tuple[Answer, Answer]:
    """Return the history of a study that lost transfer efficiency half-way, and the check of the last sessions."""
    random = np.random.default_rng(0)
    machine = SimulatedMachine(between=0.01, within=0.01, time_between=0.03)
    baseline = simulate_sessions(random, machine, 6)
    slower = simulate_sessions(random, machine, 4, losses={"transfer efficiency": 0.12}, first_day=6)
    changed = replace(slower, label="now", software=replace(slower.software, mpi_library="Open MPI 5.0.12"))
    history = history_of([baseline, changed], replace(baseline, label="main"))
    check = check_sessions(baseline, changed)
    return history_answer(history), session_answer(check, "harness check")


def write_pages(folder: Path) -> dict[str, WrittenPage]:
    """Write a page of each of `KINDS` below `folder`."""
    results = folder / "results"
    reports = folder / "reports"
    write_results(results)
    pages = {}
    for answer in (bench_answer(make_bench()), probe_of(results), *answers_over_time()):
        page = write_page(answer, reports).page
        assert page is not None
        pages[answer.kind] = WrittenPage(path=page)
    for kind, words in COMMANDS.items():
        places = ["--results", str(results), "--reports", str(reports), "--json"]
        ended = CliRunner().invoke(main, [*words, *places], standalone_mode=False, catch_exceptions=False)
        document = json.loads(ended.stdout)
        pages[kind] = WrittenPage(path=Path(document["page"]), document=document)
    for kind in ("index", "glossary"):
        pages[kind] = WrittenPage(path=reports / f"{kind}.html")
    return pages
