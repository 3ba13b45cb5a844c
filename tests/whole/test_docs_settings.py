"""The tables of docs/settings.md are those that the options of `harness sweep` make."""

import re
from pathlib import Path

import click

from harness.cli import main
from harness.cli.command_make import settings_of
from harness.schema.option import GROUPS
from tests.labs.golden import compare_golden

PAGE = Path(__file__).parents[2] / "docs/settings.md"
BEGIN, END = "<!-- settings: from tests/whole/test_docs_settings.py -->\n", "<!-- settings: end -->"


def tables() -> str:
    """Return the settings of `make sweep` as Markdown: a table for each group of `harness sweep --help-all`."""
    rows: dict[str, list[str]] = {group: [] for group in (*GROUPS, "")}
    told: set[int] = set()
    for name, parameter in settings_of(main.get_command(click.Context(main), "sweep")).items():
        if id(parameter) in told or not isinstance(parameter, click.Option) or parameter.hidden:
            continue  # SHARE_NODES is EXCLUSIVE=0; what was replaced is hidden
        told.add(id(parameter))
        rows[getattr(parameter, "group", "")].append(row(name, parameter))
    head = ["", "| setting | values | default | |", "|---|---|---|---|"]
    titled = ((group or "The answer", own) for group, own in rows.items())
    return "\n".join([line for title, own in titled for line in ("", f"### {title}", *head, *own)] + ["", ""])


def row(name: str, option: click.Option) -> str:
    """Return the line of one setting: what may be written, what holds if nothing is, what it does."""
    text, _, default = (option.help or "").rstrip(".").partition(" [default: ")
    if option.show_default and option.default is not None:
        default = str(option.default)
    switch = option.is_flag or bool(option.secondary_opts)
    kind = "1 or 0" if switch else option.metavar or {"integer": "a count", "float": "a number"}.get(option.type.name)
    cells = [f"`{name}=`", f"`{kind}`" if option.metavar else kind or "", default.rstrip("].") or "", text]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def test_the_tables_of_settings_are_the_options() -> None:
    page = PAGE.read_text()
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    compare_golden(page[:begin] + tables() + page[end:], PAGE)
    assert len(re.findall(r"^\| `", tables(), re.MULTILINE)) > 50
