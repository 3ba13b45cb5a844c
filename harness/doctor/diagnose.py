"""All checks, in the order of the table."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.base.errors import UserError
from harness.doctor import machine, mpi
from harness.doctor.machine import PROBLEM, Check
from harness.doctor.scheduler import check_scheduler


def diagnose(data_dir: Path | None) -> Iterator[Check]:
    """Yield every check as it is made; about 15 s altogether. `data_dir` is the data folder, None for the default."""
    yield machine.check_load()  # first: the doctor's own processes come later
    yield machine.check_python()
    tensorflow = machine.try_tensorflow()
    yield machine.check_tensorflow(tensorflow)
    for name, title in (("keras", "Keras"), ("numpy", "NumPy"), ("mpi4py", "mpi4py")):
        yield machine.check_package(name, title)
    launcher = mpi.find()
    yield from mpi.check_mpi(launcher)
    yield from check_scheduler()
    yield from machine.check_compilers(None if isinstance(launcher, UserError) else launcher.path)
    yield from machine.check_cores()
    yield machine.check_memory()
    yield machine.check_gpus(tensorflow.gpus)
    yield machine.check_cache()
    yield from machine.check_data(data_dir)
    yield machine.check_commit()


def exit_code(checks: Iterable[Check]) -> int:
    """Return 0 when everything that runs need works, else 1."""
    return 1 if any(check.status == PROBLEM for check in checks) else 0
