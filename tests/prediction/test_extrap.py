"""`harness predict --extrap FILE`: what was measured, in the text format that Extra-P reads."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.base.errors import UserError
from harness.cli.command_predict import predict_command as command
from harness.schema.sweep import Layout, Point, Sweep
from tests.labs.factories import make_launch, make_run, make_workload, write_run, write_study

COUNTS = (1, 2, 4, 8, 16)


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


def export(results: Path, file: Path, *words: str) -> Result:
    """Run `harness predict --extrap` on the results."""
    arguments = ["--extrap", str(file), "--results", str(results), *words]
    return CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)


def read_text_format(file: Path) -> tuple[list[float], dict[str, list[list[float]]]]:
    """Return the points, and for each region its values [points][launches], of a file in Extra-P's text format."""
    points: list[float] = []
    regions: dict[str, list[list[float]]] = {}
    region = ""
    for line in file.read_text().splitlines():
        if line.startswith("#"):
            continue
        tag, _, value = line.partition(" ")
        match tag:
            case "PARAMETER":
                assert value == "p"
            case "POINTS":
                points = [float(point) for point in value[1:-1].split(") (")]
            case "METRIC":
                assert value == "seconds"
            case "REGION":
                region = value
                regions[region] = []
            case "DATA":
                regions[region].append([float(number) for number in value.split(" ")])
            case _:
                raise AssertionError(line)
    return points, regions


def test_the_measured_points_are_read_back(tmp_path: Path) -> None:
    write_sweep(tmp_path / "results")
    file = tmp_path / "points.txt"
    finished = export(tmp_path / "results", file, "--workload", "mnist-dnn", "--json")
    assert finished.return_value == 0 and json.loads(finished.stdout)["file"] == str(file)
    assert not json.loads(finished.stdout).get("warnings")
    points, regions = read_text_format(file)
    assert points == list(COUNTS)
    assert set(regions) == {"epoch", "epoch->compute", "epoch->input", "epoch->skew", "epoch->wire"}
    for count, values in zip(COUNTS, regions["epoch"], strict=True):
        seconds = 1.0 / count + (0.1 if count > 1 else 0.0)
        assert sorted(values) == pytest.approx([seconds * (1 + repeat / 1000) for repeat in range(3)])
    for number in range(len(COUNTS)):
        parts = [regions[region][number] for region in regions if region != "epoch"]
        assert [sum(part) for part in zip(*parts, strict=True)] == pytest.approx(regions["epoch"][number])


def test_extra_p_itself_reads_the_file(tmp_path: Path) -> None:
    reader = pytest.importorskip("extrap.fileio.file_reader.text_file_reader", reason="package extrap")
    write_sweep(tmp_path / "results")
    file = tmp_path / "points.txt"
    export(tmp_path / "results", file, "--workload", "mnist-dnn")
    experiment = reader.TextFileReader().read_experiment(file)
    assert [tuple(coordinate) for coordinate in experiment.coordinates] == [(float(count),) for count in COUNTS]
    assert len(experiment.callpaths) >= 5 and len(experiment.measurements) == 5


def test_fewer_points_than_extra_p_asks_for_are_written_with_a_warning(tmp_path: Path) -> None:
    write_sweep(tmp_path / "results", counts=(1, 2))
    finished = export(tmp_path / "results", tmp_path / "points.txt", "--workload", "mnist-dnn", "--json")
    assert len(json.loads(finished.stdout)["warnings"]) == 1
    assert read_text_format(tmp_path / "points.txt")[0] == [1, 2]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "--workload"),
        (("--workload", "mnist-dnn", "--workload", "adult-dnn"), "--workload"),
        (("--workload", "higgs-dnn"), "no valid launch of higgs-dnn"),
        (("--workload", "mnist-dnn", "--network", "1e-6,1e-10"), "--network"),
        (("--workload", "mnist-dnn", "--sync", "none"), "--sync"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    write_sweep(tmp_path / "results", counts=(1, 2))
    with pytest.raises(UserError, match=reason):
        export(tmp_path / "results", tmp_path / "points.txt", *words)
    assert not (tmp_path / "points.txt").exists()


def test_layouts_that_ranks_do_not_tell_apart_are_refused(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "results", counts=(1, 2))
    wide = Point(workload=make_workload(), layout=Layout(nodes=2, threads=2), repeat=0)
    write_run(folder, make_run(wide, seconds=[[0.5, 0.5]]))
    with pytest.raises(UserError, match="several layouts of the same ranks"):
        export(tmp_path / "results", tmp_path / "points.txt", "--workload", "mnist-dnn")
