"""Answers in the formats of other tools, each read by the tool's own parser or held against its documented form."""

import csv
import io
import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from harness.analysis.read_results import load_sweep
from harness.cli import main
from harness.report.answer import Answer
from harness.report.exports import BenchmarkLine, CaseOutcome, CaseResult, Exports
from harness.report.formats import FORMATS
from harness.report.formats.caraml import HEADER
from harness.report.sweep_exports import sweep_exports
from harness.schema.energy import DeviceEnergy
from harness.schema.job_usage import Account, JobUsage
from harness.schema.launch_failure import Failure
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import encode
from harness.schema.sweep import Skipped, Sweep
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.sweep_request import read_study
from tests.labs.factories import START, make_launch, make_point, make_run, make_workload, write_run, write_study
from tests.labs.refusals import refused

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"
COUNTS = (1, 2, 4, 8, 16)


def call(*words: object, folder: Path) -> Result:
    """Call the command line with `folder`'s results and reports."""
    places = ["--results", str(folder / "results"), "--reports", str(folder / "reports")]
    return CliRunner().invoke(main, [*map(str, words), *places], standalone_mode=False, catch_exceptions=False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Return the JSON document of the repository's sweep, and its text in every format that fits a report."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "results").mkdir()
    (folder / "results" / SWEEP.name).symlink_to(SWEEP)
    names = [name for name, fit in FORMATS.items() if "report" in fit.commands]
    words = []
    for name in names:
        words += ["--format", name, "--output", folder / name]
    document = json.loads(call("report", SWEEP.name, *words, "--json", folder=folder).stdout)
    return {"document": document, **{name: (folder / name).read_text() for name in names}}


def points(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {point["layout"]: point for point in measured["document"]["scaling"]["points"]}


def test_bencher_has_every_value_of_the_answer_with_its_interval(measured: Mapping[str, Any]) -> None:
    """As bencher.dev/bmf.json has it: names, in them measures, of each a value and perhaps its bounds, all numbers."""
    benchmarks = json.loads(measured["bencher"])
    assert set(benchmarks) == {"mnist-dnn, 1 rank", "mnist-dnn, 2 ranks"}
    for measures in benchmarks.values():
        assert {"epoch-time", "step-time", "throughput", "speedup", "efficiency"} == set(measures)
        for metric in measures.values():
            assert "value" in metric and set(metric) <= {"value", "lower_value", "upper_value"}
            assert all(isinstance(number, float) for number in metric.values())
    point = points(measured)["2 ranks"]
    assert benchmarks["mnist-dnn, 2 ranks"]["speedup"] == {
        "value": point["speedup"],
        "lower_value": point["speedup_interval"]["low"],
        "upper_value": point["speedup_interval"]["high"],
    }


def test_github_action_benchmark_has_what_is_better_when_smaller(measured: Mapping[str, Any]) -> None:
    entries = json.loads(measured["github-action-benchmark"])
    assert len(entries) == 4
    for entry in entries:
        assert {"name", "unit", "value"} <= set(entry) <= {"name", "unit", "value", "range", "extra"}
        assert isinstance(entry["value"], float) and all(
            isinstance(entry[name], str) for name in set(entry) - {"value"}
        )
    point = points(measured)["2 ranks"]
    (entry,) = [entry for entry in entries if entry["name"] == "mnist-dnn, 2 ranks: epoch time"]
    half = (point["seconds_interval"]["high"] - point["seconds_interval"]["low"]) / 2
    assert entry["value"] == point["seconds"]
    assert float(entry["range"].removeprefix("± ")) == pytest.approx(half, rel=1e-3)


def test_openmetrics_ends_each_sample_with_a_number_and_a_time(measured: Mapping[str, Any]) -> None:
    lines = measured["openmetrics"].splitlines()
    assert lines[-1] == "# EOF"
    for line in lines[:-1]:
        if not line.startswith("#"):
            _, value, moment = line.rsplit(" ", 2)
            assert float(value) > 0 and float(moment) > 1e9


def test_openmetrics_is_read_by_prometheus(measured: Mapping[str, Any]) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="package prometheus-client")
    families = {family.name: family for family in parser.text_string_to_metric_families(measured["openmetrics"])}
    point = points(measured)["2 ranks"]
    for name, value in (
        ("harness_epoch_time_seconds", point["seconds"]),
        ("harness_epoch_time_low_seconds", point["seconds_interval"]["low"]),
        ("harness_speedup_high_ratio", point["speedup_interval"]["high"]),
    ):
        (sample,) = [sample for sample in families[name].samples if sample.labels["ranks"] == "2"]
        assert sample.value == value and sample.timestamp is not None
        assert families[name].type == "gauge" and name.endswith(families[name].unit)


def test_caraml_has_the_header_of_the_suite_and_a_line_for_each_launch(measured: Mapping[str, Any]) -> None:
    lines = list(csv.DictReader(io.StringIO(measured["caraml"])))
    assert tuple(lines[0]) == HEADER and len(lines) == 12
    assert [line["Devices"] for line in lines] == ["1"] * 6 + ["2"] * 6
    for line in lines:
        assert line["Model"] == "dnn" and line["Dataset"] == "mnist"
        assert int(line["GlobalBatchSize"]) == int(line["Devices"]) * int(line["BatchSize/Device"])
        assert float(line["Images/second"]) > 0 and line["Energy/Device(Wh)"] == ""


def test_caraml_has_what_the_scheduler_knows_of_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    write_study(folder, ranks=(2,))
    run = make_launch(2, 0, 1.0)
    write_run(folder, run)
    usage = JobUsage(elapsed_s=10.0, nodes=1, energy_j=7200.0)
    account = Account(job="4711", scheduler="slurm", launch=run.point.folder, usage=usage)
    SweepFolder(folder).accounts.write_bytes(encode((account,)))
    exports = lines_of(folder)
    (line,) = exports
    assert (line.job, line.queue, line.energy_wh) == ("4711", "slurm", 1.0)


def test_caraml_has_the_energy_that_the_gpus_have_counted(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    write_study(folder, ranks=(2,))
    run = make_launch(2, 0, 1.0)
    gpu = DeviceEnergy(host="n", device="GPU-1", seconds=10.0, samples=11, counter_j=3600.0)
    write_run(folder, replace(run, energy=(gpu, replace(gpu, device="GPU-2", counter_j=1800.0))))
    usage = JobUsage(elapsed_s=10.0, nodes=1, energy_j=99999.0)
    account = Account(job="4711", scheduler="slurm", launch=run.point.folder, usage=usage)
    SweepFolder(folder).accounts.write_bytes(encode((account,)))
    (line,) = lines_of(folder)
    assert line.energy_wh == 0.75  # of a device


def lines_of(folder: Path) -> list[BenchmarkLine]:
    from harness.analysis.launch_frames import launch_frame

    loaded = load_sweep(folder)
    return list(sweep_exports(loaded, launch_frame(loaded.runs, loaded.epochs), None).lines)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Return a folder with a sweep that has a valid launch, an invalid one, a failure and a layout that was skipped."""
    folder = tmp_path / "results" / "mixed"
    write_study(folder, ranks=(1, 2))
    study = read_study(SweepFolder(folder))
    skipped = Skipped(layout=Layout(nodes=4), reason="4 ranks need 4 cores, here are 2")
    SweepFolder(folder).study.write_bytes(encode(replace(study, skipped=(skipped,))))
    write_run(folder, make_launch(1, 0, 1.0))
    write_run(folder, replace(make_launch(2, 0, 0.6), invalid=("other work kept 1 core busy",)))
    failure = Failure(
        point=make_point(2, 1),
        ended=START,
        exit_code=139,
        reason="rank 1 ended by signal 11",
        tail="a <line> & \x1b[31mcolour\x1b[0m",
        seconds=3.5,
    )
    SweepFolder(folder).failures.mkdir()
    (SweepFolder(folder).failures / f"{failure.point.folder}.json").write_bytes(encode(failure))
    return tmp_path


def test_junit_has_every_launch_also_those_that_failed_or_were_skipped(mixed: Path) -> None:
    file = mixed / "sweep.xml"
    call("report", "mixed", "--format", "junit", "--output", file, folder=mixed)
    (suite,) = ElementTree.fromstring(file.read_text())
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["4", "1", "0", "2"]
    outcomes = {}
    for case in suite.iter("testcase"):
        outcomes[case.get("name")] = [child.tag for child in case if child.tag != "system-out"]
    assert outcomes == {
        "1 rank, launch 1": [],
        "2 ranks, launch 1": ["skipped"],
        "2 ranks, launch 2": ["failure"],
        "4 ranks": ["skipped"],
    }


@pytest.mark.slow  # whole commands
def test_junit_is_read_by_junitparser(mixed: Path) -> None:
    junitparser = pytest.importorskip("junitparser", reason="package junitparser")
    file = mixed / "sweep.xml"
    call("report", "mixed", "--format", "junit", "--output", file, folder=mixed)
    report = junitparser.JUnitXml.fromfile(str(file))
    (suite,) = report
    cases = {case.name: case for case in suite}
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (4, 1, 0, 2)
    (failure,) = cases["2 ranks, launch 2"].result
    assert isinstance(failure, junitparser.Failure) and "139" in failure.message and "<line> &" in failure.text
    assert cases["2 ranks, launch 2"].time == 3.5 and cases["1 rank, launch 1"].is_passed


def test_junit_holds_any_character_of_an_output() -> None:
    case = CaseResult(group="g", name="n", outcome=CaseOutcome.FAILED, reason="\x00\ud800", output="\x1b")
    answer = Answer(sentence="s", exports=Exports(name="x", cases=[case]), when=datetime(2026, 1, 1, tzinfo=UTC))
    ElementTree.fromstring(FORMATS["junit"].render(answer).encode())


def write_sweep(results: Path, counts: tuple[int, ...] = COUNTS, repeats: int = 3) -> Path:
    """Write launches whose epoch is 1 s of computation shared out, and 0.1 s of skew and wire from 2 ranks on."""
    sweep = Sweep(workload=make_workload(), layouts=tuple(Layout(nodes=count) for count in counts), repeats=repeats)
    folder = results / sweep.name
    write_study(folder, ranks=counts)
    for count in counts:
        for repeat in range(repeats):
            together = 0.1 if count > 1 else 0.0
            seconds = 1.0 / count + together
            write_run(folder, make_launch(count, repeat, seconds * (1 + repeat / 1000), sync=together / seconds))
    return folder


@pytest.mark.slow  # whole commands
def test_extra_p_gets_every_launch_of_every_point(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "results")
    text = call("report", folder.name, "--format", "extrap", folder=tmp_path).stdout
    assert [line for line in text.splitlines() if line.startswith("POINTS")] == ["POINTS (1) (2) (4) (8) (16)"]
    regions: dict[str, list[list[float]]] = {}
    for line in text.splitlines():
        tag, _, value = line.partition(" ")
        if tag == "REGION":
            rows = regions.setdefault(value, [])
        elif tag == "DATA":
            rows.append([float(number) for number in value.split(" ")])
    assert set(regions) == {"epoch", "epoch->compute", "epoch->input", "epoch->skew", "epoch->wire"}
    for number, count in enumerate(COUNTS):
        seconds = 1.0 / count + (0.1 if count > 1 else 0.0)
        assert sorted(regions["epoch"][number]) == pytest.approx([seconds * (1 + part / 1000) for part in range(3)])
        parts = [regions[region][number] for region in regions if region != "epoch"]
        assert [sum(part) for part in zip(*parts, strict=True)] == pytest.approx(regions["epoch"][number])


def test_extra_p_itself_reads_the_file(tmp_path: Path) -> None:
    reader = pytest.importorskip("extrap.fileio.file_reader.text_file_reader", reason="package extrap")
    folder = write_sweep(tmp_path / "results")
    file = tmp_path / "points.txt"
    call("report", folder.name, "--format", "extrap", "--output", file, folder=tmp_path)
    experiment = reader.TextFileReader().read_experiment(file)
    assert [tuple(coordinate) for coordinate in experiment.coordinates] == [(float(count),) for count in COUNTS]
    assert len(experiment.callpaths) >= 5 and len(experiment.measurements) == 5


@pytest.mark.slow  # whole commands
def test_layouts_that_ranks_do_not_tell_apart_are_refused_for_extra_p(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "results", counts=(1, 2))
    wide = Point(workload=make_workload(), layout=Layout(nodes=2, threads=2), repeat=0)
    write_run(folder, make_run(wide, seconds=[[0.5, 0.5]]))
    with refused("report.formats.extrap.render"):
        call("report", folder.name, "--format", "extrap", "--output", tmp_path / "points.txt", folder=tmp_path)
    assert not (tmp_path / "points.txt").exists()


def test_explain_has_the_names_of_talp_in_its_document(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / SWEEP.name).symlink_to(SWEEP)
    document = json.loads(call("explain", SWEEP.name, "--json", folder=tmp_path).stdout)
    names = document["talp"]["2 ranks"]
    product = names["mpiLoadBalance"] * names["mpiCommunicationEfficiency"]
    assert math.isclose(names["parallelEfficiency"], product)
    assert math.isclose(names["globalEfficiency"], product * names["computationScalability"])


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("explain", SWEEP.name, "--format", "junit"), ("report.formats.format_of",)),
        (
            ("report", SWEEP.name, "--format", "junti"),
            ("report.formats.format_of", "junti"),
        ),
        (
            ("report", SWEEP.name, "--output", "x"),
            ("cli.format_options.asked_renderings", "--format"),
        ),
        (
            ("report", SWEEP.name, "--format", "junit", "--json"),
            ("cli.format_options.asked_renderings", "--output"),
        ),
        (
            ("report", SWEEP.name, "--format", "junit", "--format", "caraml", "--output", "x"),
            ("cli.format_options.asked_renderings", "--output"),
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(
    words: tuple[str, ...], refusal: str, tmp_path: Path
) -> None:
    with refused(*refusal):
        call(*words, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_format_is_offered_by_the_commands_that_it_names() -> None:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        offers = any("--format" in parameter.opts for parameter in command.params)
        assert offers == any(name in fit.commands for fit in FORMATS.values()), name
