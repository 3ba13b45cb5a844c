"""A bundle is the same bytes for the same records, whole or refused, and its pages are drawn again with its numbers."""

import gzip
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.__main__ import run_command_line
from harness.base.removal import MARK
from harness.bundle.archive import SUMS, pack, unpacked, write_sums
from harness.bundle.verification import verify_bundle
from tests.labs.factories import write_study
from tests.labs.sentences import refuses

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, coarse_pictures: None) -> Path:
    """Return a folder with records, a bundle of them, and the bundle's files in `open`."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(SWEEP, folder / "results" / SWEEP.name)
    assert bundle(folder) == 0
    with tarfile.open(archive(folder)) as opened:
        opened.extractall(folder / "open", filter="data")
    return folder


def bundle(folder: Path, *words: str) -> int:
    options = ["--results", str(folder / "results"), "--reports", str(folder / "reports")]
    return run_command_line(["bundle", *(words or (SWEEP.name,)), *options])


def archive(folder: Path) -> Path:
    return folder / "reports" / "bundles" / f"{SWEEP.name}.tar.gz"


def inside(folder: Path) -> Path:
    return folder / "open" / SWEEP.name


def repacked(place: Path, target: Path, change: "object") -> Path:
    """Return a bundle whose unpacked files `change` has changed."""
    shutil.copytree(inside(place), target / "open")
    change(target / "open")  # type: ignore[operator]
    made = target / "changed.tar.gz"
    pack(target / "open", made, datetime(2026, 1, 1, tzinfo=UTC))
    return made


@pytest.mark.slow
def test_the_same_records_make_the_same_bytes_and_the_same_numbers(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = archive(place).read_bytes()
    assert bundle(place) == 0 and archive(place).read_bytes() == first
    moved = shutil.copy(archive(place), tmp_path / "other-name.tar.gz")
    capsys.readouterr()
    redraw = ["bundle", "redraw", "--reports", str(tmp_path / "again")]
    assert run_command_line([*redraw, "--json", str(moved)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["files"] > 10 and answer["different"] == []
    assert (tmp_path / "again/other-name/reports" / SWEEP.name / "index.html").is_file()
    (tmp_path / "again/other-name" / MARK).unlink()
    assert run_command_line([*redraw, str(moved)]) == 2  # somebody's own now


@pytest.mark.slow
def test_a_redraw_finds_a_number_that_is_not_of_the_records(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = f"reports/{SWEEP.name}/launches.csv"

    def edit(folder: Path) -> None:
        text = (folder / table).read_text()
        number = re.findall(r"\d\.\d{3,}", text)[0]
        (folder / table).write_text(text.replace(number, f"9{number}"))
        (folder / f"reports/{SWEEP.name}/index.html").write_text("other bytes, which are not compared")
        write_sums(folder)

    changed = repacked(place, tmp_path / "1", edit)
    capsys.readouterr()
    assert run_command_line(["bundle", "redraw", str(changed), "--json", "--reports", str(tmp_path / "again")]) == 1
    assert json.loads(capsys.readouterr().out)["different"] == [table]


@pytest.mark.slow
def test_it_has_all_that_a_stranger_needs(place: Path) -> None:
    folder = inside(place)
    names = {path.name for path in folder.iterdir()}
    assert names >= {"README.md", "LICENSE", "CITATION.cff", "requirements.lock", SUMS, "smoke.sh", "source"}
    assert sorted(p.name for p in (folder / "results" / SWEEP.name).glob("n*")) == sorted(
        p.name for p in SWEEP.glob("n*")
    )
    for record in SWEEP.glob("n*/*"):
        assert (folder / "results" / SWEEP.name / record.relative_to(SWEEP)).read_bytes() == record.read_bytes()
    assert list((folder / "source").glob("harness-*.tar"))
    assert 'dataset = "mnist"' in (folder / "reports" / SWEEP.name / "study.toml").read_text()
    again = (folder / "reproduce.sh").read_text().split()
    assert "--dataset=mnist" in again[again.index("sweep") :]
    smoke = (folder / "smoke.sh").read_text()
    commands = [line.split()[1:3] for line in smoke.splitlines() if line.startswith("harness ")]
    assert [words[0] for words in commands].count("reproduce") == 1 and ["bundle", "redraw"] in commands


@pytest.mark.slow
def test_the_readme_has_answer_limits_and_commands(place: Path) -> None:
    text = (inside(place) / "README.md").read_text()
    answer, _, commands = text.partition("## Set-up")
    assert f"## {SWEEP.name}" in answer and "20,000 of 60,000 training samples" in answer
    assert "1.73" in answer and "1.67 to 1.78" in answer
    assert f"tar xzf {SWEEP.name}.tar.gz" in commands and "source/harness-" in commands
    assert (inside(place) / "reports/claims/index.html").is_file() and "{" not in text


@pytest.mark.slow
def test_verify_takes_a_whole_one_and_names_what_is_wrong(place: Path, tmp_path: Path) -> None:
    assert [check.good for check in verify_bundle(archive(place))] == [True, True]
    assert run_command_line(["bundle", "verify", str(archive(place))]) == 0
    record = next((inside(place) / "results" / SWEEP.name).glob("n*/run.json")).relative_to(inside(place))

    def edit(folder: Path) -> None:
        (folder / record).write_text((folder / record).read_text().replace("mnist", "minst"))

    def lose(folder: Path) -> None:
        (folder / record).unlink()
        write_sums(folder)

    for number, (change, good, said) in enumerate(
        (
            (edit, [False, False], "was changed"),
            (lose, [True, False], "11 launches can be read, the bundle states 12"),
            (lambda folder: (folder / "more.txt").touch(), [False, False], "has no checksum"),
            (lambda folder: (folder / "README.md").unlink(), [False, False], "is missing"),
        )
    ):
        changed = repacked(place, tmp_path / str(number), change)
        checks = verify_bundle(changed)
        assert [check.good for check in checks] == good and any(said in check.finding for check in checks), checks
        assert run_command_line(["bundle", "verify", str(changed)]) == 1


@pytest.mark.parametrize("name", ["../evil", "/evil", "a", "a/../../evil"])
def test_members_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = 1
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as made:
        made.addfile(entry, io.BytesIO(b"x"))
    with refuses("file in its folder"), unpacked(tmp_path / "b.tar.gz"):
        pass
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
def test_members_that_are_no_files_are_refused(kind: bytes, tmp_path: Path) -> None:
    entry = tarfile.TarInfo("b/x")
    entry.type, entry.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as made:
        made.addfile(entry)
    assert run_command_line(["bundle", "verify", str(tmp_path / "b.tar.gz")]) == 2


def test_what_is_no_bundle_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(SWEEP, tmp_path / "open")
    pack(tmp_path / "open", tmp_path / "whole.tar.gz", datetime(2026, 1, 1, tzinfo=UTC))
    whole = (tmp_path / "whole.tar.gz").read_bytes()
    twice = io.BytesIO()
    with tarfile.open(fileobj=twice, mode="w:gz") as made:
        for _ in range(2):
            made.addfile(tarfile.TarInfo("b/x"), io.BytesIO())
    huge = tarfile.TarInfo("b/x")
    huge.size = 2**62
    for number, content in enumerate(
        (
            b"",
            b"text",
            whole[:1000],
            whole[: len(whole) // 2],
            gzip.compress(b""),
            gzip.compress(b"x" * 600),
            twice.getvalue(),
            gzip.compress(huge.tobuf(tarfile.GNU_FORMAT)),
        )
    ):
        (tmp_path / f"{number}.tar.gz").write_bytes(content)
        for words in (["bundle", "verify"], ["bundle", "redraw", "--reports", str(tmp_path / "r")]):
            assert run_command_line([*words, str(tmp_path / f"{number}.tar.gz")]) == 2, number
            assert "Traceback" not in (said := capsys.readouterr().err) and said
    assert run_command_line(["bundle", "verify", str(tmp_path / "none.tar.gz")]) == 2
    assert not (tmp_path / "r").exists()


def test_what_cannot_be_bundled_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(tmp_path / "results/s")
    for words, said in (
        (["s"], "holds no finished launch"),
        (["nothing"], "unknown sweep"),
        (["s", "s"], "names one sweep twice"),
        (["s", "--output", str(tmp_path / "x.zip")], "does not end in .tar.gz"),
    ):
        assert bundle(tmp_path, *words) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "reports").exists()


@pytest.mark.slow
def test_the_name_of_a_bundle_never_becomes_a_command(place: Path, tmp_path: Path) -> None:
    name = "it's $(touch owned); `id`.tar.gz"
    made = tmp_path / name
    assert bundle(place, SWEEP.name, "--output", str(made)) == 0
    with tarfile.open(made) as opened:
        opened.extractall(tmp_path / "open", filter="data")
    (folder,) = (tmp_path / "open").iterdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "harness").write_text("#!/bin/sh\nprintf '<%s>' \"$@\"; echo\n")
    (programs / "harness").chmod(0o755)
    before = sorted(folder.iterdir())

    def sh(*words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
        return subprocess.run(["sh", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)

    assert sh("smoke.sh").returncode == 2 and name in sh("smoke.sh").stderr
    ended = sh("smoke.sh", f"../{name}", "--trust")
    assert ended.returncode == 0 and f"<bundle><verify><../{name}>" in ended.stdout
    assert re.search(r"<reproduce><results/[^>]+><--results><again><--trust>", ended.stdout)
    commands = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith(("tar x", "cd "))]
    assert [shlex.split(line)[-1] for line in commands[:2]] == [name, name.removesuffix(".tar.gz")]
    assert sorted(folder.iterdir()) == before
