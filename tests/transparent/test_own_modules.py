"""A script's own modules win for the script, and the harness goes on to import its own."""

import ast
import json
import subprocess
import sys
from importlib.machinery import FrozenImporter
from pathlib import Path

import pytest

import harness
from harness.transparent import own_modules
from harness.transparent.own_modules import has_own

PACKAGE = Path(harness.__file__).parent
ROOMS = ("base", "comm", "schema", "transparent", "horovod", "readers")  # whatever a rank of a script may import
OF_TENSORFLOW = {"tensorflow", "keras", "tf_keras"}  # alone a script with one of these has no TensorFlow either
STANDARD = ("statistics", "queue", "random", "secrets")
START = f"import sys; sys.path[0] = {str(PACKAGE.parent)!r}\n"


def imported_names():
    """Return the first names of all modules that a rank's own code imports, TensorFlow's apart."""
    trees = [ast.parse(path.read_text()) for room in ROOMS for path in (PACKAGE / room).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return sorted({name.partition(".")[0] for name in names} - OF_TENSORFLOW)


def python(program, folder, *words):
    """Run a Python that knows the harness, in a folder; return its last line."""
    finished = subprocess.run(
        [sys.executable, "-c", START + program, *words], capture_output=True, text=True, check=False, cwd=folder
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished.stdout.splitlines()[-1]


PROGRAM = """
from pathlib import Path
from harness.transparent import script_process
folder, names = Path(sys.argv[1]), sys.argv[2:]
sys.path[0] = str(folder)
script_process.separate_own_modules(folder)
script = {"__name__": "__main__", "__file__": str(folder / "train.py")}
rank = {"__name__": "harness.comm.world", "__package__": "harness.comm", "__file__": script_process.__file__}
package = {"__name__": "click.core", "__package__": "click", "__file__": "/lib/site-packages/click/core.py"}
for name in [*names, *names]:
    for importer, is_script in ((script, True), (rank, False), (package, False), (script, True)):
        exec(f"import {name} as module", importer)
        assert hasattr(importer["module"], "OWN") == is_script, (name, importer["__name__"])
exec("from mpi4py import rc; import psutil._common; assert psutil.Process().cpu_num() >= 0", rank)
exec("from .core import Command", package)
exec("import psutil; assert psutil.inner.WHO == 'psutil' and psutil.again is psutil", script)
exec("from harness.models import NETWORK; import harness.models as models; assert models.NETWORK == 'own'", script)
exec("from harness.comm import world; assert world.World", rank)
print("good")
"""


def test_whatever_the_ranks_import_may_be_a_module_of_the_scripts(tmp_path):
    names = ["psutil", "mpi4py", "click", "msgspec", "numpy", *STANDARD]
    for name in names:
        (tmp_path / f"{name}.py").write_text("OWN = True\n")
    (tmp_path / "psutil.py").unlink()
    (tmp_path / "psutil").mkdir()
    (tmp_path / "psutil/__init__.py").write_text("OWN = True\nfrom . import inner\nimport psutil as again\n")
    (tmp_path / "psutil/inner.py").write_text("WHO = __package__\n")
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness/__init__.py").write_text("OWN = True\n")
    (tmp_path / "harness/models.py").write_text("import click\nassert click.OWN\nNETWORK = 'own'\n")
    assert python(PROGRAM, tmp_path, str(tmp_path), *names, "harness") == "good"


NESTED = """
from pathlib import Path
from harness.transparent import script_process
folder = Path(sys.argv[1])
sys.path[0] = str(folder)
script_process.separate_own_modules(folder)
library = {"__name__": "library", "__file__": "/lib/site-packages/library.py"}
exec("import queue", {})  # as packages do with what they make of texts
exec("import train_data", library)  # which is the script's, though a library imports it
exec("import queue; assert queue.OWN", {"__name__": "__main__", "__file__": str(folder / "train.py")})
import queue
print(hasattr(queue, "Queue"))
"""


def test_code_without_a_file_is_not_the_scripts(tmp_path):
    (tmp_path / "queue.py").write_text("OWN = True\n")
    (tmp_path / "train_data.py").write_text("import queue\nassert queue.OWN\n")
    assert python(NESTED, tmp_path, str(tmp_path)) == "True"


def test_what_the_ranks_import_later_is_known_before():
    """A module of the script's that is imported first must not be what the ranks find."""
    program = (
        "import json; import harness.transparent.__main__, harness.transparent.script_process\n"
        "print(json.dumps([*sys.modules]))"
    )
    loaded = {*json.loads(python(program, PACKAGE.parent)), *own_modules.LATER, *sys.builtin_module_names}
    assert [name for name in imported_names() if name not in loaded and FrozenImporter.find_spec(name) is None] == []


@pytest.mark.parametrize("name", ["train", "my_own_model", "os"])
def test_where_nothing_has_a_name_of_the_harness_imports_stay_as_they_are(tmp_path, name):
    """`os` every Python has imported before it knows of a script."""
    (tmp_path / f"{name}.py").touch()
    program = (
        "import builtins; from pathlib import Path; from harness.transparent import own_modules\n"
        "before = builtins.__import__\nown_modules.separate_own_modules(Path(sys.argv[1]))\n"
        "print(builtins.__import__ is before)"
    )
    assert python(program, tmp_path, str(tmp_path)) == "True"


def test_a_script_beside_the_harness_imports_the_harness():
    program = (
        "import builtins; from pathlib import Path; from harness.transparent import own_modules\n"
        "before = builtins.__import__\nown_modules.separate_own_modules(Path(sys.argv[1]))\n"
        "print(builtins.__import__ is before)"
    )
    assert python(program, PACKAGE.parent, str(PACKAGE.parent)) == "True"


def test_a_package_of_the_scripts_own_is_known(tmp_path):
    (tmp_path / "horovod").mkdir()
    assert not has_own(tmp_path, "horovod")  # without __init__.py it gives way
    (tmp_path / "horovod" / "__init__.py").touch()
    assert has_own(tmp_path, "horovod")


@pytest.mark.parametrize("words", [("-m", "harness.transparent"), (str(PACKAGE / "transparent" / "start.py"),)])
def test_a_rank_does_not_start_from_modules_in_its_working_folder(tmp_path, words):
    for name in ("psutil", "click", "statistics"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the script's')")
    if words[0] != "-m":
        (tmp_path / "harness.py").write_text("raise SystemExit('the script's')")
    environment = {"PYTHONPATH": str(PACKAGE.parent), "PYTHONHASHSEED": "0"}
    finished = subprocess.run(
        [sys.executable, *words, "--help"], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert "SCRIPT" in finished.stdout, finished.stderr
