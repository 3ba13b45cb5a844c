"""No headline without its warnings: invalid launches, no training, more speedup than there can be."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from harness.analysis.read_results import load_sweep
from harness.analysis.scaling import scale
from harness.analysis.units import significant
from harness.cli.command_report import report_command
from harness.probe import probe_runner
from harness.probe.measuring_ranks import ProbeResult
from harness.probe.probe_runner import parse_settings
from harness.regression.checks import compare_measurements
from harness.regression.measurement import measured_in
from harness.report import sweep_sentences
from harness.report.answer import plain
from harness.report.compare_answer import comparison_answer
from harness.report.probe_answer import best_settings, probe_answer
from harness.report.run_words import cost
from harness.report.sweep_facts import run_facts
from harness.schema.launch_failure import Failure
from harness.schema.record import RunRecord
from harness.sweep.finished_launches import set_aside
from harness.why.known_causes import diagnose_sweep
from tests.labs.factories import (
    launch_frame,
    make_launch,
    make_point,
    make_run,
    make_workload,
    write_run,
    write_study,
)
from tests.labs.planted_causes import Machine, slower
from tests.labs.probes import make_probe

BUSY = "other processes kept 1.2 cores of node1 busy"


def headline(runs: list[RunRecord], **changes: object) -> str:
    """The sentence of a sweep of these `runs`."""
    scaling = scale(launch_frame(runs))
    assert scaling is not None
    return plain(sweep_sentences.headline(scaling, make_workload(**changes)))


def launches(seconds: dict[int, float], **changes: object) -> list[RunRecord]:
    """Six launches a rank count of so many seconds."""
    return [make_launch(n, k, s * (1 + k / 100), **changes) for n, s in seconds.items() for k in range(6)]


def test_a_sentence_counts_the_launches_that_are_invalid() -> None:
    runs = [*launches({1: 1.0, 2: 0.6}), make_launch(2, 6, 0.6, invalid=(BUSY,))]
    assert "(1 of 13 launches invalid and left out)" in headline(runs)
    assert "invalid" not in headline(launches({1: 1.0, 2: 0.6}))


def test_without_synchronisation_nothing_trains() -> None:
    runs = [
        make_run(make_point(n, k, sync="none"), seconds=[[t] * n]) for n, t in ((1, 1.0), (2, 0.52)) for k in (0, 1)
    ]
    said = headline(runs, sync="none")
    assert said.startswith("2 ranks without synchronisation compute MNIST-DNN 1.92 times")
    assert said.endswith("an upper limit, no training.")


def test_more_speedup_than_caches_explain_is_no_headline() -> None:
    assert headline(launches({1: 1.0, 2: 0.26})).startswith("No speedup to rely on")
    assert headline(launches({1: 1.0, 2: 0.48})).startswith("2 ranks train")


def test_an_interval_that_says_little_is_no_headline() -> None:
    unsteady = [make_launch(2, k, 0.5 * 2 ** (k % 2)) for k in range(6)]
    said = headline([*(make_launch(1, k, 1.0) for k in range(6)), *unsteady])
    assert said.startswith("No speedup to rely on, its repetitions differ too much: 2 ranks train")


@pytest.mark.slow
def test_a_quiet_sentence_and_the_page_carry_the_same_warnings(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "busy"
    write_study(folder)
    for run in [*launches({1: 1.0, 2: 0.26}), make_launch(2, 6, 0.6, invalid=(BUSY,))]:
        write_run(folder, run)
    where = ["--results", str(folder.parent), "--reports", str(tmp_path / "reports")]
    told = CliRunner().invoke(report_command, [*where, "--quiet"], catch_exceptions=False)
    said = " ".join(told.output.split())
    page = plain((tmp_path / "reports" / "busy" / "index.html").read_text())
    for text in (
        f"1 of 13 launches are invalid and left out, mostly: {BUSY}.",
        "Efficiency far above 100 % on 2 ranks",
    ):
        assert text in said and text in page
    assert "Warning: Efficiency far above 100 % on 2 ranks" in plain((tmp_path / "reports/index.html").read_text())


def test_a_probe_leaves_out_blocks_that_other_work_met(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    samples = make_probe({"default": (1e-5, 1e-9), "other": (1e-5, 1e-10)}).samples

    def measured(bad: int) -> probe_runner.ProbeSamples:
        done = {"default": 0, "other": 0}

        def measure(*arguments: object) -> tuple[dict[str, ProbeResult], dict[str, str]]:
            (setting,) = arguments[-1]  # type: ignore[misc]
            name = "other" if setting.mca else "default"
            number = done[name]
            done[name] += 1
            answer = ProbeResult(
                hosts=("node1", "node1"),
                mpi_library="Open MPI v5.0.11",
                series=tuple(one for setting, launch, one in samples if (setting, launch) == (name, number)),
                invalid=(BUSY,) if name == "default" and number < bad else (),
                notes=(),
            )
            return {setting.name: answer}, {}

        monkeypatch.setattr(probe_runner, "_measure", measure)
        monkeypatch.setattr(probe_runner, "wait_until_quiet", lambda say, force: 0.0)
        asked = probe_runner.ProbeSettings(launcher="mpirun -n 2", settings=parse_settings(["pml=other"]))
        return probe_runner.run_probe(asked, lambda line: None)

    quiet, half, busy = (measured(bad).probe for bad in (0, 4, 6))
    assert [len(one.by_setting[0].costs[0].sizes[0].launches) for one in (quiet, half, busy)] == [6, 2, 6]
    assert (quiet.invalid, half.invalid, busy.invalid) == ((), (), (BUSY,))
    assert half.notes == (f"4 of 6 blocks are left out, in which times were not valid: {BUSY}",)
    assert best_settings(quiet, ["mnist-dnn"])["mnist-dnn"].environment
    assert not best_settings(half, ["mnist-dnn"])["mnist-dnn"].environment  # two blocks show nothing
    assert best_settings(busy, ["mnist-dnn"]) == {}
    answer = probe_answer(busy, tmp_path, {})
    assert answer.code == 3 and answer.sentence.startswith("No times are valid")
    assert "interval" not in answer.sentence


def test_what_other_work_met_is_diagnosed_only_where_nothing_else_is_there(tmp_path: Path) -> None:
    write_study(tmp_path, ranks=(2,))
    case = Machine(ranks=2, own=slower(1, 1.3)).case(np.random.default_rng(0))
    write_run(tmp_path, replace(case.run, point=make_point(2, 0), invalid=(BUSY,)))
    assert [one.cause for one in diagnose_sweep(load_sweep(tmp_path))] == ["a slow rank"]
    even = Machine(ranks=2).case(np.random.default_rng(0))
    write_run(tmp_path, replace(even.run, point=make_point(2, 1)))
    assert diagnose_sweep(load_sweep(tmp_path)) == ()


def test_a_comparison_says_which_launches_are_left_out(tmp_path: Path) -> None:
    for name, seconds in (("first", (1, 1, 1, 1.3, 1.3, 1.3, 1.3)), ("other", (1, 1, 1, 1, 1.3, 1.3, 1.3))):
        write_study(tmp_path / name, ranks=(1,))
        for repeat, one in enumerate(seconds):
            write_run(tmp_path / name, make_launch(1, repeat, float(one)))
    write_run(tmp_path / "other", make_launch(1, 7, 1.0, invalid=(BUSY,)))
    first, other = (measured_in(tmp_path / name, name, None) for name in ("first", "other"))
    rows = [compare_measurements(first, other, practical=0.03)]
    answer = comparison_answer(("first", "other"), (first, other), rows, (0,), "harness compare first other")
    assert [plain(banner.text) for banner in answer.banners] == ["1 of 8 launches of other are not valid and left out."]


def test_the_cost_of_a_sweep_has_what_was_replaced(tmp_path: Path) -> None:
    write_study(tmp_path)
    point = make_point(1)
    write_run(tmp_path, make_run(point, invalid=(BUSY,)))
    set_aside(tmp_path, point)
    write_run(tmp_path, make_run(point))
    loaded = load_sweep(tmp_path)
    assert len(loaded.runs) == 1
    (value,) = (fact.value for fact in run_facts(loaded.valid, loaded.launched) if fact.name == "Cost")
    assert plain(value).endswith("in 2 launches, 1 of them replaced")


def test_the_cost_of_launches_has_their_imports_and_a_block_once() -> None:
    one, two = make_run(make_point(1)), make_run(make_point(2), invalid=(BUSY,))
    each = [30 + run.ranks[0].import_s for run in (one, two)]
    assert plain(cost([one, two])) == f"{significant((each[0] + 2 * each[1]) / 3600, 2)} core-hours in 2 launches"
    again = replace(two, started=two.ended, ended=two.ended + (two.ended - two.started))
    assert plain(cost([one, two, again])).endswith("in 3 launches, 1 of them replaced")
    block = [replace(run, block="block-1") for run in (one, two)]
    assert plain(cost(block)) == f"{significant(2 * max(each) / 3600, 2)} core-hours in 2 launches"
    failed = Failure(point=two.point, ended=two.ended, exit_code=137, reason="killed", tail="", seconds=3600)
    assert plain(cost(block, [failed])).endswith(" core-hours in 2 launches, and 1 cut short")
    assert float(plain(cost(block, [failed])).split()[0]) == float(significant(2 + 2 * max(each) / 3600, 2))
