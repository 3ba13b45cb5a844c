"""How ranks are started: a world of another size than the layout is refused, by a class of its own where it is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base.errors import SharedError
from harness.base.exit_codes import SEPARATE_WORLDS
from harness.comm.world import World, check_world_size


@pytest.mark.parametrize(("size", "exit_code"), [(1, SEPARATE_WORLDS), (2, 2)])
def test_another_number_of_ranks_than_the_layout_has_ends_with_a_code_that_says_whether_all_were_alone(
    size: int, exit_code: int
) -> None:
    world = World(comm=None, rank=0, size=size)  # type: ignore[arg-type]
    with pytest.raises(SharedError) as refused:
        check_world_size(world, 4)
    assert refused.value.error.exit_code == exit_code
    check_world_size(world, size)


def test_a_library_of_mpi_keeps_its_own_functions_where_another_exports_some_of_the_same_name(tmp_path: Path) -> None:
    """As TensorFlow exports hwloc's. Loaded lazily, as by mpi4py, the library would call the other's."""
    sources = {
        "libhwloc": "int answer(void) { return 1; }",
        "libmpi": "int answer(void); int finish(void) { return answer(); }",
        "libtensorflow": "int answer(void) { return 2; }",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.c").write_text(source)
        words = ["gcc", "-shared", "-fPIC", "-Wl,-z,lazy", f"{name}.c", "-o", f"{name}.so"]
        words += ["./libhwloc.so"] if name == "libmpi" else []
        subprocess.run(words, cwd=tmp_path, check=True)
    program = (
        "import ctypes, os; from harness.comm.world import bind_library; bind_library(); "
        "library = ctypes.CDLL('./libmpi.so', os.RTLD_LAZY | os.RTLD_LOCAL); "
        "ctypes.CDLL('./libtensorflow.so', os.RTLD_GLOBAL); print(library.finish())"
    )
    answers = {}
    for named in ("./libmpi.so", ""):
        environment = os.environ | {"MPI4PY_LIBMPI": named, "PYTHONPATH": str(Path(__file__).parents[2])}
        words = [sys.executable, "-c", program]
        ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        answers[named] = ended.stdout.strip()
    assert answers == {"./libmpi.so": "1", "": "2"}
