"""The house: README's floors are those that `make lint` holds."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_readme_lists_the_floors_that_lint_holds():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    held = [set(re.findall(r"\w+", layer)) for layer in reversed(layers)]
    section = (ROOT / "README.md").read_text().partition("## Architecture")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \d+ \| (.*) \|$", section, re.MULTILINE)
    assert [set(re.findall(r"(?:^|· )`(\w+)`", row)) for row in rows] == held


def test_every_room_is_on_a_floor():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rooms = {path.parent.name for path in (ROOT / "harness").glob("*/__init__.py")}
    assert rooms == set(re.findall(r"\w+", " ".join(layers)))
