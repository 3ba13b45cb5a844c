"""The house: the documentation's floors are those that `make lint` holds."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


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
    assert rooms == set(re.findall(r"\w+", " ".join(layers)))
