"""An archive of a stranger takes no more memory, disk or files than a bundle may, whatever its headers claim."""

import gzip
import io
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.bundle import archive
from harness.bundle.archive import pack, unpacked
from tests.labs.sentences import refuses

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
_MEMORY = """
import re, sys
from pathlib import Path
from harness.base.errors import UserError
from harness.bundle.archive import unpacked
try:
    with unpacked(Path(sys.argv[1])):
        sys.exit("it was unpacked")
except UserError:
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())  # not that of who forked it
    print(int(peak[1]) // 1024)
"""


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.type = kind
    return entry.tobuf(tarfile.GNU_FORMAT)


def pax(text: bytes) -> bytes:
    """Return a PAX header of one record."""
    length = len(text) + 3
    while len(b"%d %s\n" % (length, text)) != length:
        length += 1
    record = b"%d %s\n" % (length, text)
    return header("x", len(record), tarfile.XHDTYPE) + record + bytes(-len(record) % 512)


@pytest.fixture(scope="module")
def zeros() -> bytes:
    """Return 300 MB of zeros, compressed."""
    compressed = io.BytesIO()
    with gzip.open(compressed, "wb", compresslevel=1) as file:
        for _ in range(300):
            file.write(bytes(1 << 20))
    return compressed.getvalue()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE])
@pytest.mark.parametrize("claimed", [300 << 20, 10 << 30], ids=["300 MB", "10 GB"])
def test_a_long_header_takes_no_memory(kind: bytes, claimed: int, tmp_path: Path, zeros: bytes) -> None:
    """The archive has 300 MB of the header; whoever reads it whole needs more than is allowed here."""
    bomb = tmp_path / "bomb.tar.gz"
    bomb.write_bytes(gzip.compress(header("b/x", claimed, kind)) + zeros)
    command = [sys.executable, "-c", _MEMORY, str(bomb)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert int(ended.stdout) < 200


@pytest.mark.parametrize("record", [b"size=10", b"GNU.sparse.major=1", b"comment=x", b"path=", b"path=a\n9 size=1"])
def test_a_header_that_says_more_than_a_name_is_refused(record: bytes, tmp_path: Path) -> None:
    content = pax(record) + header("b/x", 0) + bytes(1024)
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(content))
    with pytest.raises(UserError), unpacked(tmp_path / "b.tar.gz"):
        pass


def test_long_and_foreign_names_come_back(tmp_path: Path) -> None:
    names = ["a" * 150 + "/" + "b" * 150, "ü" * 60, "run.json"]
    for name in names:
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_text(name)
    pack(tmp_path / "files", tmp_path / "b.tar.gz", MOMENT)
    with unpacked(tmp_path / "b.tar.gz") as folder:
        assert [(folder / name).read_text() for name in names] == names
    with tarfile.open(tmp_path / "b.tar.gz") as opened:
        assert sorted(opened.getnames()) == sorted(f"b/{name}" for name in names)


def test_too_many_files_are_neither_packed_nor_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()
    for number in range(4):
        (tmp_path / "files" / str(number)).touch()
    pack(tmp_path / "files", tmp_path / "b.tar.gz", MOMENT)
    monkeypatch.setattr(archive, "MOST_FILES", 3)
    with refuses("GiB of them: bundle"), unpacked(tmp_path / "b.tar.gz"):
        pass
    with refuses("GiB of them: bundle"):
        pack(tmp_path / "files", tmp_path / "other.tar.gz", MOMENT)
    assert not (tmp_path / "other.tar.gz").exists()


@pytest.mark.parametrize("limit", ["MOST_BYTES", "RATIO_BYTES"])
def test_too_much_is_refused_before_it_is_on_the_disk(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/zeros").write_bytes(bytes(4 << 20))
    pack(tmp_path / "files", tmp_path / "b.tar.gz", MOMENT)
    monkeypatch.setattr(archive, limit, 1 << 20)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UserError), unpacked(tmp_path / "b.tar.gz"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "files"]


def test_every_cut_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/run.json").write_text("{}")
    pack(tmp_path / "files", tmp_path / "whole.tar.gz", MOMENT)
    whole = gzip.decompress((tmp_path / "whole.tar.gz").read_bytes())
    for length in (0, 100, 511, 512, 513, 1000, 1024, 1025):
        (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(whole[:length]))
        with pytest.raises(UserError), unpacked(tmp_path / "cut.tar.gz"):
            pass


def test_a_file_that_the_system_cannot_read_is_refused() -> None:
    with refuses("cannot be read"), unpacked(Path("/proc/self/mem")):
        pass
