"""A script's own modules win for the script, and the harness goes on to import its own."""

import ast
import importlib.util
import subprocess
import sys

from harness.transparent.module_precedence import NAME, ROOT

ROOMS = ("base", "comm", "schema", "transparent", "horovod", "readers")  # whatever a rank of a script may import
OF_TENSORFLOW = {"tensorflow", "keras", "numpy", "h5py", "google"}  # alone such a script has no TensorFlow either
STANDARD = ("statistics", "queue", "shelve")


def installed_packages():
    """Return the packages that modules of a rank import, TensorFlow's apart."""
    trees = [ast.parse(path.read_text()) for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    packages = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - OF_TENSORFLOW - {NAME}
    return sorted(name for name in packages if importlib.util.find_spec(name) is not None)


def python(program, folder, *words):
    """Run a Python that knows the harness, in a folder; return its last line."""
    path = f"import sys; sys.path[0] = {str(ROOT.parent)!r}\n"
    finished = subprocess.run(
        [sys.executable, "-c", path + program, *words], capture_output=True, text=True, check=False, cwd=folder
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished.stdout.splitlines()[-1]


PROGRAM = """
from pathlib import Path
from harness.transparent import script_process
folder, names = Path(sys.argv[1]), sys.argv[2:]
sys.path[0] = str(folder)
script_process.give_way(folder)
script = {"__name__": "__main__", "__file__": str(folder / "train.py")}
rank = {"__name__": "harness.comm.world", "__package__": "harness.comm"}
package = {"__name__": "click.core", "__package__": "click", "__file__": "/where/it/is/installed/click/core.py"}
for name in [*names, *names]:
    for importer, is_script in ((script, True), (rank, False), (package, False), (script, True)):
        exec(f"import {name} as module", importer)
        assert hasattr(importer["module"], "OWN") == is_script, (name, importer["__name__"])
exec("from mpi4py import rc; import psutil._common; assert psutil.Process().cpu_num() >= 0", rank)
exec("from .core import Command", package)
exec("import psutil; assert psutil.inner.WHO == 'psutil' and psutil.again is psutil", script)
print("good")
"""


def test_whatever_the_ranks_import_may_be_a_module_of_the_scripts(tmp_path):
    names = [*installed_packages(), *STANDARD]
    assert {"psutil", "mpi4py", "click", "msgspec"} <= set(names)
    for name in names:
        (tmp_path / f"{name}.py").write_text("OWN = True\n")
    (tmp_path / "psutil.py").unlink()
    (tmp_path / "psutil").mkdir()
    (tmp_path / "psutil/__init__.py").write_text("OWN = True\nfrom . import inner\nimport psutil as again\n")
    (tmp_path / "psutil/inner.py").write_text("WHO = __package__\n")
    assert python(PROGRAM, tmp_path, str(tmp_path), *names) == "good"


def test_where_nothing_has_a_name_of_the_harness_imports_stay_as_they_are(tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "my_own_model.py").touch()
    (tmp_path / "os.py").touch()  # which every Python has imported before it knows of a script
    program = (
        "import builtins; from pathlib import Path; from harness.transparent.shadowed_modules import give_way\n"
        "before = builtins.__import__\ngive_way(Path(sys.argv[1]))\nprint(builtins.__import__ is before)"
    )
    assert python(program, tmp_path, str(tmp_path)) == "True"


def test_a_rank_does_not_start_from_modules_in_its_working_folder(tmp_path):
    (tmp_path / "psutil.py").write_text("raise SystemExit('the script\\'s')")
    (tmp_path / "click.py").write_text("raise SystemExit('the script\\'s')")
    environment = {"PYTHONPATH": str(ROOT.parent), "PYTHONHASHSEED": "0"}
    finished = subprocess.run(
        [sys.executable, "-m", "harness.transparent", "--help"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert "SCRIPT" in finished.stdout, finished.stderr
