"""A probe: lines fitted to known costs, settings, blocks that are left out, and one real launch."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.cli.command_probe import probe_command as command
from harness.probe import probe_runner
from harness.probe.measuring_ranks import ProbeResult
from harness.probe.message_fit import fit_cost
from harness.probe.probe_runner import algorithm_settings, message_sizes, parse_settings
from harness.probe.probe_store import read_probe
from harness.report.probe_answer import best_settings, fit_warning, probe_answer
from harness.schema.claim import EXPERIMENTS
from harness.schema.message_cost import (
    ALLREDUCE,
    NODE,
    Setting,
)
from tests.labs.networks import EXPECTED
from tests.labs.probes import SIZES, make_probe, noisy
from tests.labs.sentences import refuses, says

BUSY = "other processes kept 1.2 cores of node1 busy"


@hypothesis_settings(max_examples=15)
@given(st.floats(1e-7, 1e-3), st.floats(1e-11, 1e-7))
def test_a_line_is_found_again_within_its_interval(alpha: float, beta: float) -> None:
    cost = fit_cost(ALLREDUCE, NODE, 2, noisy(alpha, beta))
    for found, true in ((cost.alpha_s, alpha), (cost.beta_s_per_byte, beta)):
        assert found.low is not None and found.high is not None
        assert found.low <= found.value <= found.high
        width = max(found.high - found.low, 0.01 * true)  # 95 % is not always: two widths are
        assert abs(found.value - true) <= 2 * width
    assert cost.good


def test_exact_times_give_the_exact_line_and_no_samples_no_interval() -> None:
    cost = fit_cost(ALLREDUCE, NODE, 2, {size: [2e-6 + 1e-10 * size] * 3 for size in SIZES})
    assert cost.alpha_s.value == pytest.approx(2e-6) and cost.alpha_s.low is None
    assert cost.beta_s_per_byte.value == pytest.approx(1e-10)
    assert cost.worst_error < 1e-9
    assert cost.seconds(EXPERIMENTS["mnist-dnn"].weights_bytes) == pytest.approx(2e-6 + 1e-10 * 712_440)
    assert cost.seconds(2 * SIZES[-1]) == pytest.approx(cost.line(2 * SIZES[-1]))
    assert cost.seconds(1) == pytest.approx(cost.line(8))


def test_a_bad_fit_is_said() -> None:
    bent = {size: [1e-6 if size < 2**16 else 1e-4 + 1e-10 * size] * 6 for size in SIZES}
    cost = fit_cost(ALLREDUCE, NODE, 2, bent)
    assert not cost.good
    assert fit_warning(cost)
    assert cost.seconds(2**15) == pytest.approx(1e-6)  # the measured times still stand


def test_sizes_are_doublings_and_the_papers_networks() -> None:
    assert (SIZES[0], SIZES[-1]) == (8, 64 * 2**20)
    assert (
        {4 * parameters for _, parameters in EXPECTED.values()}
        == {one.weights_bytes for one in EXPERIMENTS.values()}
        <= set(SIZES)
    )
    assert all(size % 4 == 0 for size in SIZES)
    with refuses("--largest 100"):
        message_sizes(100)


def test_settings_are_parsed_and_named() -> None:
    assert parse_settings(["pml=ob1  btl=self,sm"])[0] == Setting(
        name="pml=ob1 btl=self,sm", mca={"pml": "ob1", "btl": "self,sm"}
    )
    for text in ("pml", "", "=ob1", "pml="):
        with refuses("NAME=VALUE"):
            parse_settings([text])
    names = [setting.name for setting in algorithm_settings()]
    assert len(set(names)) == len(names) >= 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "1"], "--ranks 1 is too small"),
        (["--ranks", "4096"], "--ranks 4096 needs 4096 cores"),
        (["--workload", "mnist-dn"], "did you mean 'mnist-dnn'"),
        (["--mca", "pml"], "write NAME=VALUE"),
        (["--launcher", " "], "--launcher is empty"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)


def test_a_setting_that_does_not_run_is_told_and_the_rest_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ProbeResult(
        hosts=("node1", "node1"),
        mpi_library="Open MPI v5.0.11",
        series=tuple(one for _, launch, one in make_probe({"default": (1e-6, 1e-10)}).samples if launch == 0),
        invalid=(),
        notes=(),
    )

    tried: list[list[str]] = []
    reason = "no answer within 180 s"

    def measure(*arguments: object) -> tuple[dict[str, ProbeResult], dict[str, str]]:
        tried.append([one.name for one in arguments[-1]])
        errors = {one.name: reason for one in arguments[-1] if one.mca == {"pml": "none-such"}}
        return {name: answer for name in tried[-1] if name not in errors}, errors

    monkeypatch.setattr(probe_runner, "measure_settings", measure)
    monkeypatch.setattr(probe_runner, "wait_until_quiet", lambda say, force: 0.0)
    monkeypatch.setattr(probe_runner, "memory_limit", lambda: 3 * 2 * 2**30)  # of three settings on two ranks
    asked = probe_runner.ProbeSettings(
        settings=parse_settings(["pml=none-such", "a=1", "b=2", "c=3"]), force=True, launches=2
    )
    probe = probe_runner.run_probe(asked, lambda line: None).probe
    assert [network.setting.name for network in probe.by_setting] == ["default", "a=1", "b=2", "c=3"]
    (note,) = probe.notes
    says(note, "the setting", "pml=none-such", reason)
    assert [len(names) for names in tried] == [3, 3, 3, 2] and {names[0] for names in tried} == {"default"}
    assert {len(cost.sizes[0].ratios) for one in probe.by_setting[1:] for cost in one.costs} == {2}
    # What a launcher of the user's own starts, perhaps on other hosts, is launched one after the other.
    tried.clear()
    apart = probe_runner.run_probe(replace(asked, launcher="mpirun -n 2", settings=asked.settings[1:3]), print).probe
    assert [len(names) for names in tried] == [1] * 6 and len(apart.by_setting) == 3


@pytest.mark.mpi
@pytest.mark.alone
@pytest.mark.usefixtures("warm")
def test_two_ranks_are_measured(tmp_path: Path) -> None:
    """Every operation and size under both settings, and the page."""
    if usable_cores() < 2:
        pytest.skip("needs 2 cores")
    folders = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    quick = ["--largest", "4096", "--samples", "6", "--budget", "1", "--launches", "2", "--force"]
    result = CliRunner().invoke(command, [*quick, "--mca", "coll_tuned_priority=90", *folders])
    assert result.exception is None, result.output
    probe = read_probe(next((tmp_path / "results" / "probes").iterdir()))
    assert [network.setting.name for network in probe.by_setting] == ["default", "coll_tuned_priority=90"]
    costs = probe.by_setting[0].costs
    operations = {cost.operation for cost in costs}
    assert operations == {"point-to-point", "broadcast", "allreduce", "reduction:native", "reduction:messages"}
    assert all([size.bytes for size in cost.sizes] == list(message_sizes(4096)) for cost in costs)
    for network in probe.by_setting:
        sums = [cost for cost in network.costs if cost.operation in ("allreduce", "reduction:native")]
        assert all(len(size.ratios) == 2 for cost in sums for size in cost.sizes)
    usual = probe.by_setting[0].find("reduction:native", NODE)
    assert usual and all(size.ratios == (0.0, 0.0) for size in usual.sizes)
    samples = pd.read_parquet(next((tmp_path / "results" / "probes").glob("*/samples.parquet")))
    assert samples.groupby(["launch", "setting"]).size().nunique() == 1  # both made as many samples, in turns
    assert probe.core_seconds > 4 and len(probe.commit) in (0, 40)  # 4 launches, a second on 2 ranks at the least
    assert all(0 < size.seconds.value < 0.1 for cost in costs for size in cost.sizes)
    assert Path(result.output.splitlines()[-1]).name == "index.html"


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

        monkeypatch.setattr(probe_runner, "measure_settings", measure)
        monkeypatch.setattr(probe_runner, "wait_until_quiet", lambda say, force: 0.0)
        asked = probe_runner.ProbeSettings(launcher="mpirun -n 2", settings=parse_settings(["pml=other"]))
        return probe_runner.run_probe(asked, lambda line: None)

    quiet, half, busy = (measured(bad).probe for bad in (0, 4, 6))
    assert [len(one.by_setting[0].costs[0].sizes[0].launches) for one in (quiet, half, busy)] == [6, 2, 6]
    assert (quiet.invalid, half.invalid, busy.invalid) == ((), (), (BUSY,))
    (note,) = half.notes
    says(note, "blocks are left out", 4, 6, BUSY)
    assert best_settings(quiet, ["mnist-dnn"])["mnist-dnn"].environment
    assert not best_settings(half, ["mnist-dnn"])["mnist-dnn"].environment  # two blocks show nothing
    assert best_settings(busy, ["mnist-dnn"]) == {}
    answer = probe_answer(busy, tmp_path, {})
    assert answer.code == 3
    says(answer.sentence, "No times are valid", BUSY)
    assert "interval" not in answer.sentence
