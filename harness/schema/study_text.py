"""A study in a file: its tables, and the text of the file that gives a sweep again.

`harness.cli.study_file` reads such files.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from harness.base.record_words import printable
from harness.schema.command_lines import Words, recorded_data_dir, sweep_words
from harness.schema.option import HOW, SPREAD, WHAT, WHERE, WRITTEN, options
from harness.schema.sweep import Sweep
from harness.schema.workload import Workload

TABLES = {"data": WHAT, "train": HOW, "ranks": SPREAD, "where": WHERE, "output": WRITTEN}
"""The tables of a study, each with the heading that its options have in the help of `harness sweep`."""
CHECK = "check"
"""The table of the limits of `harness check`."""
COUNTS = ("nodes", "cores", "gpus", "ranks-per-node", "threads")
"""Keys of lists of counts: ``[1, 2, 4]``, ``"1..8"`` or a number."""

StudyTables = dict[str, dict[str, object]]
"""The settings of a study by table and key; a value is what TOML has for it."""

_OF_SCRIPTS = ("script", "script-arguments", "script-batch", "allow-argument")
_REPEATED = ("allow-argument",)


def study_text(tables: Mapping[str, Mapping[str, object]], remark: str = "") -> str:
    """Return the text of a study's file, its `remark` as a comment above."""
    parts = [f"# {' '.join(printable(remark).split())}\n"] if remark else []
    for table in (*TABLES, CHECK):
        settings = tables.get(table)
        if settings:
            lines = [f"{key} = {_toml(value)}\n" for key, value in settings.items()]
            parts.append(f"[{table}]\n{''.join(lines)}")
    return "\n".join(parts)


def recorded_study(sweep: Sweep) -> tuple[StudyTables, ...]:
    """Return the studies that give `sweep`, one for each part of its layouts that no single one gives."""
    return tuple(_tables_of(words) for words in sweep_words(sweep))


def page_studies(folder: Path, sweep: Sweep) -> tuple[str, ...]:
    """Return the files of `recorded_study`, with the folder of the originals that the sweep in `folder` was given.

    Nothing in them is of one machine but this folder: the batch system's settings are left out.
    """
    data_dir = recorded_data_dir(folder)
    texts = []
    for tables in recorded_study(sweep):
        if data_dir:
            tables["data"]["data-dir"] = data_dir
        texts.append(study_text(tables))
    return tuple(texts)


def counts_value(text: str) -> object:
    """Return a list of counts as a study has it: ``1,2,4`` as a list, ``4`` as a number, ``1..8`` as it is."""
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdecimal() for part in parts):
        return text
    counts = [int(part) for part in parts]
    return counts if len(counts) > 1 else counts[0]


def _tables_of(words: Words) -> StudyTables:
    tables: StudyTables = {table: {} for table in TABLES}
    tables_by_heading = {heading: table for table, heading in TABLES.items()}
    headings = dict.fromkeys(_OF_SCRIPTS, WHAT)
    for field, asked in options(Workload):
        headings[asked.name or field.name.replace("_", "-")] = asked.group or HOW
    for name, value in words:
        key = name.lower().replace("_", "-")
        settings = tables[tables_by_heading[headings.get(key, SPREAD)]]  # what is of no workload is of ranks
        if key in _REPEATED:
            repeated = settings.setdefault(key, [])
            assert isinstance(repeated, list)
            repeated.append(value)
        elif key in COUNTS:
            settings[key] = counts_value(str(value))
        else:
            settings[key] = value
    return tables


def _toml(value: object) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    # A text is written as in JSON, which leaves one control character as it is.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
