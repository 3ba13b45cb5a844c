"""The doctor's table, line by line: software, MPI, the machine, its scheduler and its data."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.base.errors import UserError
from harness.doctor.cluster_checks import check_scheduler
from harness.doctor.diagnostic import Diagnostic, ok
from harness.doctor.machine_checks import (
    check_cache,
    check_cores,
    check_data,
    check_gpus,
    check_load,
    check_memory,
    check_rank_files,
)
from harness.doctor.mpi_checks import check_mpi, find_mpirun
from harness.doctor.software_checks import (
    check_commit,
    check_compilers,
    check_package,
    check_tensorflow,
    try_tensorflow,
)


def all_checks(data_dir: Path | None) -> Iterator[Diagnostic]:
    """Yield every check as it is made; about 15 s altogether. `data_dir` is the data folder, None for the default."""
    yield check_load()  # first: the doctor's own processes come later
    yield ok("Python", f"{platform.python_version()}, {sys.executable}")
    tensorflow = try_tensorflow()
    yield check_tensorflow(tensorflow)
    for name, title in (("keras", "Keras"), ("numpy", "NumPy"), ("mpi4py", "mpi4py")):
        yield check_package(name, title)
    launcher = find_mpirun()
    yield from check_mpi(launcher)
    yield from check_scheduler()
    yield from check_compilers(None if isinstance(launcher, UserError) else launcher.path)
    yield from check_cores()
    yield check_memory()
    yield check_gpus(tensorflow.gpus)
    yield check_cache()
    yield check_rank_files()
    yield from check_data(data_dir)
    yield check_commit()
