"""A rank of a sweep that runs a script has files of its own before MPI starts, which starts threads."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness.cli.rank_trees import part_files
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.presets import script_workload
from harness.transparent import private_files
from tests.labs.factories import make_point


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    calls: list[Path] = []
    monkeypatch.setattr(private_files, "enter", lambda script, logs: calls.append(script))
    monkeypatch.setattr(private_files, "rank_by_environment", lambda: 1)
    return calls


def written(folder: Path, point: Point) -> Path:
    file = folder / "point.json"
    file.write_bytes(msgspec.json.encode(point))
    return file


def command(point_file: Path) -> list[str]:
    return ["train", "--point", str(point_file), "--record", str(point_file.parent / "record")]


@pytest.mark.parametrize(
    ("text", "is_shared", "expected"), [("", False, True), ("", True, False), ("import horovod\n", False, False)]
)
def test_a_rank_of_a_script_has_a_tree(
    tmp_path: Path, entered: list[Path], text: str, is_shared: bool, expected: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    workload = script_workload(script, (), sync="gradients", batch="global", shared_files=is_shared)
    part_files(command(written(tmp_path, Point(workload=workload, layout=Layout(nodes=2)))))
    assert entered == [script.resolve()] * expected


def test_a_rank_of_a_network_and_rank_0_have_none(
    tmp_path: Path, entered: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    part_files(command(written(tmp_path, make_point(2))))
    monkeypatch.setattr(private_files, "rank_by_environment", lambda: 0)
    part_files(command(tmp_path / "nothing.json"))
    part_files(["report"])
    assert entered == []


def test_the_process_has_one_thread_until_then() -> None:
    """A process of several gets no user namespace."""
    code = (
        "import os, harness.__main__, harness.cli.launch_rank, harness.schema.record\n"
        "import harness.transparent.script_process, harness.transparent.private_files.file_mechanism\n"
        "assert len(os.listdir('/proc/self/task')) == 1"
    )
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    subprocess.run([sys.executable, "-c", code], check=True, env=variables)
