"""Random tables in random forms, as people and programs write them, and what each must be read as.

`python -m tests.unseen.tables COUNT SEED` reads COUNT tables and prints how many were right, refused and wrong. A table
is wrong if it is read as anything else than what was written. pandas reads each plain table too, told its form: so the
generator itself is checked by another library.
"""

import csv
import gzip
import io
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness import datasets
from harness.base.errors import UserError
from harness.datasets.prepare import order_rows
from harness.readers.peers import Peers
from harness.readers.script_data import DataSetRequest, load_rank_rows
from harness.schema.workload import Workload

WORDS = (
    "red",
    "light blue",
    "gr\u00fcn",
    "O'Neil",
    "a-b",
    "x.y",
    "n\u00ba 1",
    "yes",
    "Smith, J.",
    "A;B",
    "p|q",
    'say "hi"',
)
HARD_WORDS = ("18-24", "<5", "1st", "3 doors", "$5", "A12", "5+", "1.5", "2019", "-", "None", "true")
MISSING = ("", "NA", "nan", "?", "n/a")
NUMBER_KINDS = (
    "whole",
    "large",
    "fraction",
    "thousandths",
    "wide",
    "unix time",
    "julian date",
    "northing",
    "constant",
    "id",
)
KINDS = (*NUMBER_KINDS, "words", "words", "hard words", "case", "date", "unit", "two units", "lines")
CLASSES = (("no", "yes", "may be"), ("0", "1"), ("-1", "1", "2"), ("a", "b"))
FAULTS = ("header again", "mark inside", "short row", "stray quote", "word among numbers", "blank lines", "two parts")


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a table is written."""

    separator: str
    decimal: str
    group: str
    quoting: int
    ending: str
    encoding: str
    trailing: bool
    header: bool
    index: bool
    suffix: str
    fault: str
    told: bool  # all settings are given


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column as it is written, and what it is: float64 numbers with NaN where missing, or words, empty if missing."""

    name: str
    kind: str
    cells: list[str]
    numbers: npt.NDArray[np.float64] | None = None
    words: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A random table: the file's content, the settings it is read with, and its columns; the first is the label."""

    form: Form
    columns: list[Column]
    content: bytes
    settings: dict[str, str]


def _pick(rng: np.random.Generator, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def draw_form(rng: np.random.Generator, plain: bool) -> Form:
    """Return a random form; a `plain` one has neither thousands marks nor a fault."""
    suffix = _pick(rng, (".csv", ".csv", ".csv", ".csv", ".tsv", ".csv.gz", ".parquet"))
    return Form(
        separator="\t" if suffix == ".tsv" else _pick(rng, (",", ",", ";", "\t", "|", " ")),
        decimal=_pick(rng, (".", ".", ",")),
        group="" if plain else _pick(rng, ("", "", "", "", ",", ".", "'", "\u00a0", " ")),
        quoting=_pick(rng, (csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC)),
        ending=_pick(rng, ("\n", "\n", "\r\n", "\r")),
        encoding=_pick(rng, ("utf-8", "utf-8", "utf-8-sig", "utf-16")),
        trailing=rng.random() < 0.1,
        header=suffix == ".parquet" or rng.random() < 0.7,
        index=suffix != ".parquet" and rng.random() < 0.2,
        suffix=suffix,
        fault=_pick(rng, FAULTS) if suffix != ".parquet" and not plain and rng.random() < 0.5 else "",
        told=rng.random() < 0.5,
    )


def _numbers(kind: str, rows: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.float64], int]:
    """Return numbers and the places after the mark with which they are written."""
    places = int(rng.integers(1, 5))
    if kind == "whole":
        return rng.integers(-50, 50, rows).astype(float), 0
    if kind == "large":
        return np.round(np.exp(rng.uniform(0, 14, rows))), 0
    if kind == "fraction":
        return np.round(rng.normal(0, 3000, rows), places), places
    if kind == "thousandths":
        return np.round(rng.uniform(1, 999, rows), 3), 3
    if kind == "wide":
        return rng.normal(0, 1, rows) * 10.0 ** rng.integers(-8, 9, rows), -1
    if kind == "unix time":
        return 1_700_000_000.0 + rng.integers(0, 5_000, rows), 0
    if kind == "julian date":
        return np.round(2_460_000 + rng.uniform(0, 3, rows), 5), 5
    if kind == "northing":
        return np.round(5_312_000 + rng.uniform(0, 50, rows), 2), 2
    if kind == "constant":
        return np.full(rows, float(_pick(rng, (0.1, 3.0, 1_700_000_001.0)))), 1
    return 10.0**15 + np.arange(rows) * 7, 0  # id


def _written(value: float, places: int, form: Form) -> str:
    if places < 0:
        return repr(float(value)).replace(".", form.decimal)
    text = f"{abs(value):,.{places}f}".replace(",", "\0").replace(".", form.decimal)
    group = form.group if form.group != form.decimal else ""
    return f"{'-' if value < 0 else ''}{text.replace(chr(0), group)}"


def draw_column(name: str, kind: str, rows: int, form: Form, rng: np.random.Generator) -> Column:
    """Return a random column of a kind."""
    gaps = rng.random(rows) < (0.15 if form.header and rng.random() < 0.3 else 0.0)
    if kind in (*NUMBER_KINDS, "unit", "two units"):
        numbers, places = _numbers("fraction" if "unit" in kind else kind, rows, rng)
        units = {"unit": ("%", " kg", "\u20ac", " CHF")[int(rng.integers(4))], "two units": " m"}
        cells = [_written(value, places, form) + units.get(kind, "") for value in numbers]
        if kind == "two units":
            cells[::2] = [cell.replace(" m", " cm") for cell in cells[::2]]
        cells = [str(_pick(rng, MISSING)) if gap else cell for cell, gap in zip(cells, gaps, strict=True)]
        return Column(name=name, kind=kind, cells=cells, numbers=np.where(gaps, np.nan, numbers))
    if kind == "date":
        words = [f"2024-{1 + day % 12:02}-{1 + day % 28:02}" for day in rng.integers(0, 400, rows).tolist()]
    elif kind == "case":
        words = [str(_pick(rng, ("True", "False", "TRUE", "true"))) for _ in range(rows)]
    elif kind == "lines":
        words = [str(_pick(rng, ("one\ntwo", "three", "four, five\nsix"))) for _ in range(rows)]
    else:
        source = HARD_WORDS if kind == "hard words" else WORDS
        chosen = rng.permutation(len(source))[: int(rng.integers(2, 6))]
        words = [source[int(_pick(rng, chosen))] for _ in range(rows)]
        if kind == "hard words":
            words[::2] = ["A12"] * len(words[::2])  # numbers alone would be numbers
    words = ["" if gap else word for word, gap in zip(words, gaps, strict=True)]
    return Column(name=name, kind=kind, cells=words, words=words)


def draw_table(seed: int) -> Table:
    """Return the table of a seed."""
    rng = np.random.default_rng(seed)
    plain = rng.random() < 0.5
    form = draw_form(rng, plain)
    rows = int(rng.integers(12, 80))
    classes = _pick(rng, CLASSES if plain else (*CLASSES, ("red", "Red"), ("1", "x")))
    labels = [str(_pick(rng, classes)) for _ in range(rows)]
    numeric = all(word.lstrip("-").isdigit() for word in classes)
    name = _pick(rng, ("class", "label", "kind"))
    label = Column(
        name=name,
        kind="label",
        cells=labels,
        words=[] if numeric else labels,
        numbers=np.array(labels, np.float64) if numeric else None,
    )
    count = int(rng.integers(1, 6))
    names = _pick(
        rng,
        ([f"f{place}" for place in range(5)], ["2019", "2020", "2021", "2022", "2023"], ["a", "a b", "c", "d", "e"]),
    )
    kinds = (*NUMBER_KINDS[:9], "words") if plain else KINDS
    if plain and numeric and rng.random() < 0.5:
        kinds = NUMBER_KINDS[:9]
    columns = [label, *(draw_column(names[place], str(_pick(rng, kinds)), rows, form, rng) for place in range(count))]
    settings = {"label": name if form.header else str(1 + form.index)}
    if form.told and form.suffix != ".parquet":
        words = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar", " ": "blank"}
        settings |= {"separator": words[form.separator], "header": "yes" if form.header else "no"}
        settings |= {"decimal": "comma" if form.decimal == "," else "point"}
    return Table(form=form, columns=columns, content=_content(form, columns, rng), settings=settings)


def _content(form: Form, columns: list[Column], rng: np.random.Generator) -> bytes:
    """Return the file's bytes, with the form's fault in it."""
    if form.suffix == ".parquet":
        arrays = {column.name: column.words or column.numbers for column in columns}
        stream = io.BytesIO()
        pd.DataFrame(arrays).to_parquet(stream)
        return stream.getvalue()
    rows = [list(row) for row in zip(*(column.cells for column in columns), strict=True)]
    if form.index:
        rows = [[str(number), *row] for number, row in enumerate(rows)]
    header = [*([""] if form.index else []), *(column.name for column in columns)]
    middle = int(rng.integers(3, len(rows) - 3))
    if form.fault == "header again" and form.header:
        rows.insert(middle, header)
    if form.fault == "mark inside":
        rows[middle][0] = "\ufeff" + rows[middle][0]
    if form.fault == "short row":
        rows[middle].pop()
    if form.fault == "word among numbers" and columns[-1].numbers is not None:
        rows[middle][-1] = "unknown"
    lines = _lines([header, *rows] if form.header else rows, form)
    if form.fault == "stray quote":
        lines[middle] = '"' + lines[middle]
    if form.fault == "blank lines":
        lines[middle:middle] = ["", ""]
    if form.fault == "two parts" and form.header:
        lines += lines[:middle]
    end = (form.separator if form.trailing else "") + form.ending
    content = "".join(line + (end if line else form.ending) for line in lines).encode(form.encoding)
    return gzip.compress(content) if form.suffix == ".csv.gz" else content


def _lines(rows: list[list[str]], form: Form) -> list[str]:
    stream = io.StringIO()
    csv.writer(stream, delimiter=form.separator, quoting=form.quoting, lineterminator="\0").writerows(rows)  # type: ignore[arg-type]
    return stream.getvalue().split("\0")[:-1]


def is_plain(table: Table) -> bool:
    """Return whether every table reader that is told the form must read the table as it was written."""
    faulty = table.form.fault not in ("", "blank lines")
    odd = [column for column in table.columns if column.kind in KINDS[-7:] or column.kind == "id"]
    mixed = set(table.columns[0].cells) & {"Red", "x"}
    gaps = table.form.separator == " " and any("" in column.cells for column in table.columns)
    return not (faulty or odd or mixed or gaps or table.form.group)


def pandas_agrees(table: Table, path: Path) -> bool:
    """Return whether pandas, which is told the form, reads the numbers and words that the generator means."""
    form = table.form
    if form.suffix == ".parquet":
        frame = pd.read_parquet(path)
    else:
        frame = pd.read_csv(
            path,
            sep=form.separator,
            decimal=form.decimal,
            header=0 if form.header else None,
            encoding=form.encoding,
            na_values=list(MISSING),
            keep_default_na=False,
            index_col=False,
            compression="gzip" if form.suffix == ".csv.gz" else None,
        )
    for place, column in enumerate(table.columns, start=int(form.index)):
        read = frame.iloc[:, place]
        if column.numbers is not None and not np.array_equal(read.to_numpy(np.float64), column.numbers, equal_nan=True):
            return False
        if column.numbers is None and ["" if pd.isna(word) else word for word in read] != column.words:
            return False
    return True


def judge_reader(table: Table, folder: Path) -> str:
    """Return the outcome of a script's `DataSet` on a table, as `judge` does."""
    path = folder / f"own{table.form.suffix}"
    path.write_bytes(table.content)
    label: str | int = table.columns[0].name if table.form.header else int(table.form.index)
    written = {name: value for name, value in table.settings.items() if name != "label"}
    request = DataSetRequest(name="csv", train_file=path, label=label, one_hot=False, **written)  # type: ignore[arg-type]
    try:
        rows = load_rank_rows(request, Peers())["training"]
    except UserError as error:
        return f"refused: {error}"
    numbers = [column.numbers for column in table.columns]
    if any(values is None or np.isnan(values).any() for values in numbers):
        return "WRONG: texts or missing numbers are read"
    label_values, *features = (values for values in numbers if values is not None)
    if len(rows.labels) != len(label_values) or not np.array_equal(rows.labels, label_values.astype(np.float32)):
        return "WRONG: labels"
    read = rows.data[:, int(table.form.index) :]
    if read.shape[1] != len(features) or not np.array_equal(read, np.column_stack(features).astype(np.float32)):
        return "WRONG: values"
    return "right"


def _expected(table: Table, train_rows: int, order: npt.NDArray[np.int64]) -> list[npt.NDArray[np.float64]]:
    """Return the columns that a network must get, in the order of the prepared rows, before any centring."""
    expected = []
    for column in table.columns[1:]:
        if column.numbers is not None:
            values = column.numbers[order]
            present = values[:train_rows][~np.isnan(values[:train_rows])]
            expected.append(np.where(np.isnan(values), present.mean() if len(present) else 0.0, values))
            continue
        words = np.array(column.words)[order]
        expected += [(words == word).astype(np.float64) for word in sorted(set(column.words) - {""})]
    return expected


def judge(table: Table, folder: Path) -> str:
    """Return ``right``, ``refused: `` and the sentence, or ``WRONG: `` and why."""
    path = folder / f"own{table.form.suffix}"
    path.write_bytes(table.content)
    if is_plain(table) and table.form.separator != " " and not pandas_agrees(table, path):
        return "WRONG: pandas, which is told the form, reads other values than the generator has written"
    workload = Workload(dataset="file", model="dnn", batch_per_rank=4, data_file=str(path), **table.settings)  # type: ignore[arg-type]
    try:
        prepared = datasets.prepare(datasets.locate(workload, None))
    except UserError as error:
        sentence = str(error).replace(str(path), path.name)
        return f"refused: {sentence}" if len(sentence.splitlines()) == 1 else f"WRONG: not one sentence: {sentence}"
    return _compare(table, prepared)


def _compare(table: Table, prepared: datasets.Prepared) -> str:
    own_file = prepared.record.own_file
    assert own_file is not None
    label = table.columns[0]
    written = label.words or [str(int(number)) for number in label.numbers if label.numbers is not None]  # type: ignore[union-attr]
    if own_file.rows != len(written):
        return f"WRONG: {own_file.rows} rows of {len(written)}"
    if sorted(own_file.class_names) != sorted(set(written)):
        return f"WRONG: classes {own_file.class_names} of {sorted(set(written))}"
    numbers = np.array([own_file.class_names.index(word) for word in written], np.int32)
    order = order_rows(numbers, prepared.record.test_rows)
    if not np.array_equal(np.concatenate([prepared.train_y, prepared.test_y]), numbers[order]):
        return "WRONG: labels"
    expected = _expected(table, prepared.record.train_rows, order)
    read = np.concatenate([prepared.train_x, prepared.test_x]).astype(np.float64)
    if read.shape[1] != len(expected):
        return f"WRONG: {read.shape[1]} features of {len(expected)}"
    if own_file.table is None:
        return "WRONG: no table"
    centred = {column.name: column for column in own_file.centred}
    for place, name in enumerate(_feature_names(table)):
        values = read[:, place]
        centre = 0.0
        if name in centred:
            centre = centred[name].centre
            values = values * centred[name].scale + centre
        elif _lost_by_float32(expected[place]):
            return f"WRONG: float32 does not hold column '{name}'"
        # What is stored is right to the last digit of float32, and the mean to those of float64.
        allowed = 2e-7 * np.abs(expected[place] - centre) + 1e-14 * np.abs(expected[place])
        if np.any(np.abs(values - expected[place]) > allowed):
            return f"WRONG: values of column '{name}'"
    return "right"


def _lost_by_float32(values: npt.NDArray[np.float64]) -> bool:
    lost = np.abs(values - values.astype(np.float32)).max()
    return bool(
        lost > 1.1e-3 * values.std() and values.min() != values.max() and values.std() > 1e-9 * np.abs(values).max()
    )


def _feature_names(table: Table) -> list[str]:
    names = []
    for place, column in enumerate(table.columns[1:], start=2 + table.form.index):
        name = column.name if table.form.header else f"column {place}"
        width = 1 if column.numbers is not None else len(set(column.words) - {""})
        names += [name] * width
    return names


def run_tables(count: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Judge `count` tables of a seed; return the outcomes, and a line for each that is wrong."""
    outcomes: Counter[str] = Counter()
    wrong = []
    for number in range(count):
        table = draw_table(seed * 1_000_000 + number)
        for reader, judged in (("own table", judge), ("DataSet", judge_reader)):
            outcome = judged(table, folder)
            kind = outcome.partition(":")[0]
            told = ", plain and told" if is_plain(table) and table.form.told else ""
            outcomes[f"{reader}, {kind}{told}"] += 1
            if kind == "WRONG":
                wrong.append(f"draw_table({seed * 1_000_000 + number}), {reader}: {outcome}; {table.form}")
    return outcomes, wrong


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        outcomes, wrong = run_tables(int(sys.argv[1]), int(sys.argv[2]), Path(name))
    print(*wrong, *(f"{outcome}: {count}" for outcome, count in sorted(outcomes.items())), sep="\n")
