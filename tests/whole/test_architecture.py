"""The house: the documentation's floors are those that `make lint` holds, and its rules see what they refuse."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.house import called_once, habits, short_functions, short_modules

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"

ROOT = Path(__file__).parents[2]


def test_the_documentation_lists_the_floors_that_lint_holds():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    held = [set(re.findall(r"\w+", layer)) for layer in reversed(layers)]
    page = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| \d+ \| (.*) \|$", page, re.MULTILINE)
    assert [set(re.findall(r"(?:^|· )`(\w+)`", row)) for row in rows] == held


def test_every_room_is_on_a_floor():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rooms = {path.parent.name for path in (ROOT / "harness").glob("*/__init__.py")}
    rooms |= {path.stem for path in (ROOT / "harness").glob("*.py") if not path.stem.startswith("__")}
    assert rooms == set(re.findall(r"\w+", " ".join(layers)))


@functools.cache
def defined_names(path):
    """Return what a module defines, and all names in it."""
    tree = ast.parse((ROOT / path).read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return defined | {name.id for node in tree.body for name in ast.walk(node) if isinstance(name, ast.Name)}


@pytest.mark.parametrize(("page", "fewest"), [("where.md", 20), ("vocabulary.md", 15), ("architecture.md", 15)])
def test_every_place_that_a_page_names_is_there(page, fewest):
    places = re.findall(r"`(harness/\S+\.py)(?:: (\w+)(?:\.\w+)?)?`", (ROOT / "docs" / page).read_text())
    assert len(places) >= fewest
    for path, symbol in places:
        assert not symbol or symbol in defined_names(path), f"{path} does not define {symbol}"


def test_the_vocabulary_gives_every_noun_one_row():
    rows = re.findall(r"^\| ([a-z ,]+) \| ", (ROOT / "docs/vocabulary.md").read_text(), re.MULTILINE)
    nouns = [noun for row in rows for noun in row.split(", ") if noun not in ("noun", "verb")]
    assert len(nouns) == len(set(nouns)) >= 50


def test_every_room_says_what_enters_what_leaves_and_what_it_never_does():
    for module in (ROOT / "harness").glob("*/__init__.py"):
        head = ast.get_docstring(ast.parse(module.read_text())) or ""
        assert [line.split(": ")[0] for line in head.splitlines()[-3:]] == ["In", "Out", "Never"], module


def test_a_short_module_needs_a_reason_and_a_reason_a_module(monkeypatch):
    reasons = {"harness/schema/*.py": "", "harness/absent.py": ""}
    monkeypatch.setattr("tests.house.settings", lambda: {"short_modules": reasons})
    sentences = list(short_modules())
    assert any("harness/base/errors.py" in sentence for sentence in sentences)
    assert any("harness/absent.py" in sentence for sentence in sentences)
    assert not any("harness/schema/" in sentence or "__init__" in sentence for sentence in sentences)


SHORT = "def _twice(number):\n    return 2 * number\n\n\n"
LONG = "def _twice(number):\n    step()\n    step()\n    step()\n    return 2 * number\n\n\n"


@pytest.mark.parametrize(
    ("text", "is_fault"),
    [
        (f"{SHORT}print(_twice(3))\n", True),
        (f"{SHORT}print(_twice(3), _twice(4))\n", False),
        (f"{SHORT}print([_twice(number) for number in numbers])\n", False),
        (f"{SHORT}print(list(map(_twice, numbers)))\n", False),
        (f"@cache\n{SHORT}print(_twice(3))\n", False),
        (f"{LONG}print(_twice(3))\n", False),
        (f"{SHORT}print(_twice(3))\n".replace("_twice", "twice"), False),
    ],
)
def test_a_short_private_function_that_is_called_once_is_seen(text, is_fault):
    names = [function.name for function in called_once(ast.parse(text))]
    assert names == (["_twice"] if is_fault else [])


def test_a_short_function_needs_a_reason_and_a_reason_a_function(monkeypatch):
    reasons = {"harness/absent.py:_absent": ""}
    monkeypatch.setattr("tests.house.settings", lambda: {"short_functions": reasons})
    sentences = list(short_functions())
    assert any("harness/horovod/aliases.py:_placed" in sentence for sentence in sentences)
    assert any("harness/absent.py:_absent" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("first, second, third = 1, 2, 3\n", "parallel assignment"),
        ("first, second = load(1), load(2)\n", "parallel assignment"),
        ("word = 'a' if low else 'b' if high else 'c'\n", "chained conditional"),
        ("rows = [[cell for cell in row] for row in table]\n", "nested comprehension"),
        ("found = search()\n", "empty name"),
        ("def load(it):\n    return 1\n", "empty name"),
        ("if 'no room' in answer:\n    stop()\n", "parsed sentence"),
        ("if 'limit' in str(error):\n    stop()\n", "parsed sentence"),
        ("def long():\n" + 60 * "    step()\n", "long function"),
        (801 * "step()\n", "long module"),
        ("shutil.rmtree(folder)\n", "removal"),
        ("rmtree(folder, ignore_errors=True)\n", "removal"),
        ("path.unlink(missing_ok=True)\n", "removal"),
        ("os.remove(name)\n", "removal"),
        ("folder.rmdir()\n", "removal"),
        ("staging.rename(path)\n", "removal"),
        ("os.replace(staging, path)\n", "removal"),
        ("Path(name).replace(path)\n", "removal"),
        ("shutil.move(first, second)\n", "removal"),
    ],
)
def test_a_habit_that_the_rules_refuse_is_seen(text, kind):
    assert kind in {seen for seen, _, _ in habits(ROOT / "harness/sweep/planted.py", text)}


@pytest.mark.parametrize(
    "text",
    [
        "first, second = second, first\n",
        "names = [one.name for one in launches]\n",
        "if word == 'gradients':\n    stop()\n",
        "text = name.replace('a', 'b')\n",
        "later = replace(point, repeat=2)\n",
        "noon = moment.replace(hour=12)\n",
        "column = table['a'].rename('b')\n",
        "names.remove(name)\n",
    ],
)
def test_plain_lines_are_allowed(text):
    assert list(habits(ROOT / "harness/sweep/planted.py", text)) == []


@pytest.mark.slow  # Python, pandas and matplotlib start anew
def test_a_report_loads_nothing_that_launches(tmp_path: Path) -> None:
    program = (
        "import sys; from harness.cli import main\n"
        f"main(['report', {str(SWEEP)!r}, '--reports', {str(tmp_path)!r}], standalone_mode=False)\n"
        "print(*sorted(name for name in sys.modules), sep='\\n')"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    names = loaded.stdout.splitlines()
    assert "harness.report.sweep_answer" in names
    # Which schedulers there are and which settings jobs have, for an option's help.
    registry = {"harness.sweep", "harness.sweep.schedulers", "harness.sweep.site"}
    registry |= {"harness.sweep.scheduler_answers", "harness.comm", "harness.comm.harness_variables"}
    launching = (
        "harness.sweep",
        "harness.doctor",
        "harness.probe.probe_runner",
        "harness.probe.measuring_ranks",
        "harness.comm",
    )
    heavy = ("harness.train", "harness.transparent", "harness.bench", "tensorflow", "keras", "mpi4py")
    assert [name for name in names if name.startswith((*launching, *heavy)) and name not in registry] == []
