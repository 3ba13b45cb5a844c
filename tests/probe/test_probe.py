"""The probe: lines fitted to known costs, choices, settings, the record, and one real launch."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.cli.command_probe import probe_command as command
from harness.probe import probe_runner, tuning
from harness.probe.measuring_ranks import MessageSeries, ProbeResult
from harness.probe.probe_runner import (
    algorithm_settings,
    fit_cost,
    fit_launches,
    message_sizes,
    parse_settings,
)
from harness.probe.probe_store import newest_probe, read_probe, write_probe
from harness.probe.tuning import fastest_allreduce, tuned_settings
from harness.report.html_pages import write_page
from harness.report.probe_answer import best_settings, fit_warning, probe_answer
from harness.schema.claim import EXPERIMENTS
from harness.schema.layout import Layout
from harness.schema.message_cost import (
    ALLREDUCE,
    NODE,
    Estimate,
    MessageCost,
    MessageCosts,
    MessageTime,
    Probe,
    Setting,
)
from harness.schema.record import decode, encode
from harness.schema.sweep import Sweep
from harness.sweep.job_plan import JobPlan
from harness.sweep.job_script import write_job
from harness.sweep.schedulers import open_scheduler
from tests.labs.factories import make_provenance, make_workload
from tests.labs.networks import EXPECTED
from tests.labs.probes import SIZES, make_probe, noisy
from tests.labs.sentences import refuses, says


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


def test_the_faster_setting_is_chosen_where_it_is_faster() -> None:
    probe = make_probe({"default": (1e-6, 4e-10), "other": (1e-5, 1e-10)}).probe
    large, small = fastest_allreduce(probe, EXPERIMENTS["cifar10-cnn"].weights_bytes), fastest_allreduce(probe, 1024)
    assert large.environment == {"OMPI_MCA_pml": "other", "HARNESS_REDUCTION": "native"}
    assert large.usual_s / large.seconds == pytest.approx(4, rel=0.1)
    assert small.environment == {} and "=" not in str(small)


EQUAL, TRIALS = 10, 300


def in_blocks(ratios: np.ndarray) -> MessageCost:
    """Return a setting's cost whose log ratios to the default are `ratios`, one a block."""
    seconds = Estimate(value=1e-4)
    times = MessageTime(bytes=1024, launches=(1e-4,) * len(ratios), seconds=seconds, ratios=tuple(ratios.tolist()))
    return MessageCost(
        operation="reduction:native",
        level=NODE,
        ranks=2,
        alpha_s=seconds,
        beta_s_per_byte=Estimate(value=0.0),
        worst_error=0.0,
        worst_bytes=1024,
        sizes=(times,),
    )


@pytest.mark.parametrize(("factor", "least", "most"), [(1.0, 0.0, 0.05), (0.93, 0.8, 1.0)])
def test_of_equal_settings_the_default_stays_and_a_fast_one_is_found(factor: float, least: float, most: float) -> None:
    """In 300 probes of ten settings: all equal (5 %, and two standard errors), or one that takes 7 % less time.

    Every start of the ranks has a speed of its own, the default's is in all ratios of its block.
    """
    probe, generator, chosen = make_probe({"default": (1e-6, 1e-10)}).probe, np.random.default_rng(7), 0
    for _ in range(TRIALS):
        starts = generator.normal(0, 0.01, (EQUAL, 6))
        by_setting = tuple(
            MessageCosts(
                setting=Setting(name=str(number), mca={"coll": str(number)} if number else {}),
                costs=(in_blocks(starts[number] - starts[0] + np.log(factor if number == 1 else 1.0)),),
            )
            for number in range(EQUAL)
        )
        best = fastest_allreduce(replace(probe, by_setting=by_setting), 1024)
        chosen += best.environment != {}
        assert (best.gain is None) == (best.environment == {}) and (best.gain is None or best.gain.interval.high < 1)
    assert least <= chosen / TRIALS <= most


def test_ratios_are_of_samples_in_turns_of_one_round() -> None:
    """The machine is ten times as slow in every other turn, the first sample of each is cold: 20 % faster is found."""
    turns = np.repeat(np.arange(1, 21), 5)
    slow = np.where(turns % 2, 1e-3, 1e-4)
    cold = np.tile([50.0, 1, 1, 1, 1], 20)
    marks = tuple(np.where(cold > 1, 0, turns).tolist())

    def launch(factor: float, behind: int = 0) -> list[MessageSeries]:
        seconds = tuple((factor * slow * (cold if factor == 1 else 1))[behind:].tolist())
        return [
            MessageSeries(operation=operation, level=NODE, ranks=2, bytes=8, seconds=seconds, turns=marks[behind:])
            for operation in (ALLREDUCE, "reduction:native", "point-to-point")
        ]

    (plain, native, single) = fit_launches([launch(0.8)] * 3, [launch(1.0)] * 3)
    assert plain.sizes[0].ratios == pytest.approx([np.log(0.8)] * 3) == native.sizes[0].ratios
    assert single.sizes[0].ratios == ()
    # Samples that were made in turns of different rounds do not compare, those of launches without turns do.
    shifted = fit_launches([launch(0.8, behind=3)] * 3, [launch(1.0)] * 3)
    assert shifted[0].sizes[0].ratios == pytest.approx([np.log(0.8)] * 3)
    # Launches that are all in turns, but never in the same one, as a slow one falls behind, are still compared.
    late = [[replace(one, turns=tuple(np.array(one.turns) + 100 * np.sign(one.turns))) for one in launch(0.8)]]
    assert fit_launches(late, [launch(1.0)])[0].sizes[0].ratios == pytest.approx([np.log(0.8)], abs=0.01)
    alone = [[replace(one, turns=()) for one in launch(0.8)]]
    assert fit_launches(alone, [launch(1.0)])[0].sizes[0].ratios == pytest.approx([np.log(0.8)], abs=0.01)


def test_a_probe_without_blocks_recommends_the_defaults() -> None:
    """Older probes launched settings one after the other: they are read, and say nothing about which is faster."""
    old = make_probe({"default": (1e-6, 4e-10), "other": (1e-5, 1e-10)}).probe
    by_setting = tuple(
        replace(
            one,
            costs=tuple(replace(cost, sizes=tuple(replace(s, ratios=()) for s in cost.sizes)) for cost in one.costs),
        )
        for one in old.by_setting
    )
    text = re.sub(rb',\s*"ratios": \[\]', b"", encode(replace(old, by_setting=by_setting)))
    assert b"ratios" not in text
    kept = decode(text, Probe, Path("probe.json"))
    assert fastest_allreduce(kept, EXPERIMENTS["cifar10-cnn"].weights_bytes).environment == {}


def test_a_size_beyond_the_probe_is_refused() -> None:
    with refuses("more than the probe's", "67,108,864", "--largest", "70000000"):
        fastest_allreduce(make_probe({"default": (1e-6, 1e-10)}).probe, 70_000_000)


def test_sizes_are_doublings_and_the_papers_networks() -> None:
    assert (SIZES[0], SIZES[-1]) == (8, 64 * 2**20)
    assert (
        {4 * parameters for _, parameters in EXPECTED.values()}
        == {one.weights_bytes for one in EXPERIMENTS.values()}
        <= set(SIZES)
    )
    assert all(size % 4 == 0 for size in SIZES)
    with refuses("LARGEST=100"):
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


def test_a_probe_is_kept_and_found_again(tmp_path: Path) -> None:
    found = make_probe({"default": (1e-6, 1e-10), "other": (1e-5, 1e-10)})
    folder = write_probe(found, tmp_path)
    assert write_probe(found, tmp_path) == folder  # the same ranks on the same machine: replaced
    assert read_probe(folder) == found.probe
    fingerprint = found.probe.machine.fingerprint
    assert newest_probe(tmp_path, fingerprint) == found.probe
    samples = pd.read_parquet(folder / "samples.parquet")
    assert len(samples) == 2 * 2 * len(SIZES) * 6
    assert newest_probe(tmp_path, f"{fingerprint}0") is None
    with refuses("run `harness probe` first"):
        read_probe(tmp_path / "nothing")


def test_an_invalid_probe_speaks_for_no_machine(tmp_path: Path) -> None:
    found = make_probe({"default": (1e-6, 1e-10)}, invalid=("other processes kept 1.4 of 2 cores busy",))
    write_probe(found, tmp_path)
    assert newest_probe(tmp_path, found.probe.machine.fingerprint) is None


def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    found = make_probe({"default": (1e-6, 1e-10), "other": (1e-5, 1e-10)}, notes=("the setting 'x' did not run",))
    folder, best = write_probe(found, tmp_path / "results"), best_settings(found.probe, ["mnist-dnn"])
    page = write_page(probe_answer(found.probe, folder, best), tmp_path / "reports").page
    assert page == tmp_path / "reports" / "probes" / folder.name / "index.html"
    text = page.read_text()
    for expected in (
        "2\u00a0ranks on 1\u00a0host",
        "The setting &#39;x&#39; did not run.",
        "harness sum by shared memory",
        "95\u00a0%",
        '<td class="text">mnist-dnn</td><td>712,440</td>',
    ):
        assert expected in text, expected
    for name in ("probe-time", "probe-bandwidth", "probe-settings"):
        assert text.count(f'id="{name}"') == 1
        assert (page.parent / f"{name}.svg").stat().st_size > 10_000
    assert len(pd.read_csv(page.parent / "probe-settings.csv")) == 2 * 2 * len(SIZES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "1"], "RANKS=1 is too small"),
        (["--ranks", "4096"], "RANKS=4096 needs 4096 cores"),
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


def test_a_tuned_sweep_exports_what_the_probe_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "describe_machine", lambda gpus: make_provenance().machine)
    write_probe(make_probe({"default": (1e-6, 4e-10), "other": (1e-5, 1e-10)}), tmp_path)
    settings, sentence = tuned_settings(make_workload(), tmp_path)
    assert settings == (("HARNESS_REDUCTION", "native"), ("OMPI_MCA_pml", "other"))
    says(sentence, "2 ranks", "HARNESS_REDUCTION=native", "pml=other")
    assert sentence.count(" us ") == 2
    usual = Sweep(workload=make_workload(), layouts=(Layout(nodes=2),))
    better = replace(usual, settings=settings)
    assert better.name != usual.name and better.points()[0].key != usual.points()[0].key
    job = write_job(
        JobPlan(shape="jobs", points=better.points()[:1]),
        open_scheduler("local", oversubscribe=True),
        folder=tmp_path,
        data_dir=None,
    )
    assert "OMPI_MCA_pml=other" in job.script.read_text().split()
    with refuses("TUNED=1"):
        tuned_settings(make_workload(dataset="file"), tmp_path)
