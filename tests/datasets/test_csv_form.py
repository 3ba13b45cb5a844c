"""A user's own CSV file in every form in use: read as it was written, or refused with the setting that decides."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from harness import datasets
from tests.labs.own_files import lines, prepare, refused

Numbers = npt.NDArray[np.float64]
RNG = np.random.default_rng(7)
ROWS = 60
VALUES = np.round(RNG.normal(0, 40, (ROWS, 3)), 2)  # more than two places after the decimal mark in no cell
VALUES[:3, 0] = (0.5, -12.25, 3.0)
LARGE = np.round(np.exp(RNG.uniform(3, 15, (ROWS, 3)))).astype(np.float64)  # 20 to 3,000,000, whole
LARGE[:4, 0] = (7, 1_250, 999, 1_000_000)
CLASSES = RNG.permutation(np.arange(ROWS) % 3)
NAMES = ("width", "height", "depth", "class")


def same_rows(prepared: datasets.Prepared, values: Numbers, classes: Sequence[int]) -> None:
    """Check that the rows to train on and to test on are together these, whatever their order."""
    x = np.concatenate([prepared.train_x, prepared.test_x]).astype(np.float64)
    y = np.concatenate([prepared.train_y, prepared.test_y])
    assert x.shape == values.shape
    read = np.column_stack([x, y])
    written = np.column_stack([values.astype(np.float32), classes])
    np.testing.assert_allclose(read[np.lexsort(read.T)], written[np.lexsort(written.T)], rtol=1e-6)


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a table is written."""

    separator: str = ","
    decimal: str = "."
    group: str = ""
    before: str = ""
    after: str = ""
    quote: str = '"'
    quoting: int = csv.QUOTE_MINIMAL
    ending: str = "\n"
    encoding: str = "utf-8"
    trailing: str = ""
    header: bool = True
    first: str = ""  # text above everything


def number(value: float, form: Form, places: int) -> str:
    text = f"{abs(value):,.{places}f}"
    text = text.replace(",", "\0").replace(".", form.decimal).replace("\0", form.group)
    return f"{'-' if value < 0 else ''}{form.before}{text}{form.after}"


def table(values: Numbers, classes: Sequence[int], form: Form, places: int = 2) -> bytes:
    rows = [
        [*(number(value, form, places) for value in row), str(label)]
        for row, label in zip(values, classes, strict=True)
    ]
    if form.header:
        rows.insert(0, list(NAMES))
    else:
        rows = [[row[-1], *row[:-1]] for row in rows]
    text = io.StringIO()
    writer = csv.writer(
        text,
        delimiter=form.separator,
        quotechar=form.quote,
        quoting=form.quoting,
        lineterminator="\n",  # type: ignore[arg-type]
    )
    writer.writerows(rows)
    content = "".join(line + form.trailing + form.ending for line in text.getvalue().splitlines())
    return (form.first + content).encode(form.encoding)


FORMS = {
    "comma": Form(),
    "semicolon": Form(separator=";"),
    "tab": Form(separator="\t"),
    "bar": Form(separator="|"),
    "blank": Form(separator=" "),
    "semicolon, decimal comma": Form(separator=";", decimal=","),
    "tab, decimal comma": Form(separator="\t", decimal=","),
    "bar, decimal comma": Form(separator="|", decimal=","),
    "blank, decimal comma": Form(separator=" ", decimal=","),
    "comma, decimal comma in quotes": Form(decimal=","),
    "everything in quotes": Form(quoting=csv.QUOTE_ALL),
    "texts in quotes": Form(quoting=csv.QUOTE_NONNUMERIC, separator=";", decimal=","),
    "BOM": Form(encoding="utf-8-sig"),
    "BOM, semicolon, decimal comma": Form(encoding="utf-8-sig", separator=";", decimal=","),
    "UTF-16": Form(encoding="utf-16", separator="\t"),
    "UTF-16 of the other order": Form(encoding="utf-16-be", separator=";", decimal=",", first="\ufeff"),
    "UTF-32": Form(encoding="utf-32"),
    "CRLF": Form(ending="\r\n"),
    "CR": Form(ending="\r"),
    "CR, semicolon, decimal comma": Form(ending="\r", separator=";", decimal=","),
    "CRLF, BOM, tab": Form(ending="\r\n", encoding="utf-8-sig", separator="\t"),
    "trailing comma": Form(trailing=","),
    "trailing semicolon": Form(separator=";", decimal=",", trailing=";"),
    "trailing tab": Form(separator="\t", trailing="\t"),
    "trailing comma without header": Form(trailing=",", header=False),
    "trailing bar and CRLF": Form(separator="|", trailing="|", ending="\r\n"),
    "no header": Form(header=False),
    "no header, semicolon, decimal comma": Form(header=False, separator=";", decimal=","),
    "no header, blank": Form(header=False, separator=" "),
    "no header, tab, BOM": Form(header=False, separator="\t", encoding="utf-8-sig"),
    "no header, UTF-16": Form(header=False, separator=";", encoding="utf-16"),
    "an empty line above": Form(first="\n"),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_read_as_it_was_written(cache: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes(table(VALUES, CLASSES.tolist(), FORMS[name]))
    same_rows(prepare(path), VALUES, CLASSES.tolist())


REFUSED = {  # thousands marks, units, and lines and quotes that only one program writes
    "everything in single quotes": Form(quoting=csv.QUOTE_ALL, quote="'"),
    "Excel's line": Form(separator=";", decimal=",", first="sep=;\n"),
    "Excel's line of commas": Form(first="sep=,\n"),
    "numpy.savetxt": Form(separator=" ", first="# "),
    "euros": Form(separator=";", decimal=",", after=" \u20ac"),
    "dollars": Form(before="$"),
    "pounds": Form(before="\u00a3", separator="\t"),
    "code of a currency": Form(after=" CHF", separator=";"),
    "rupees": Form(before="\u20b9", separator="|"),
    "percent": Form(after="%"),
    "percent, blank": Form(after=" %", separator=";", decimal=","),
    "percent, tab": Form(after="%", separator="\t"),
    "percent, no header": Form(after="%", header=False),
    "percent, decimal comma in quotes": Form(after="%", decimal=","),
    "thousands, comma in quotes": Form(group=","),
    "thousands, comma, semicolon": Form(group=",", separator=";"),
    "thousands, comma, tab": Form(group=",", separator="\t"),
    "thousands, point, decimal comma": Form(group=".", decimal=",", separator=";"),
    "thousands, point, decimal comma, tab": Form(group=".", decimal=",", separator="\t"),
    "thousands, apostrophe": Form(group="'"),
    "thousands, typographic apostrophe": Form(group="\u2019", separator=";"),
    "thousands, blank": Form(group=" ", separator=";", decimal=","),
    "thousands, non-breaking blank": Form(group="\u00a0", separator=";", decimal=","),
    "thousands, narrow blank": Form(group="\u202f", separator="\t", decimal=","),
    "thousands, thin blank, comma": Form(group="\u2009"),
    "thousands, dollars": Form(group=",", before="$"),
    "thousands, euros": Form(group=".", decimal=",", separator=";", after="\u00a0\u20ac"),
    "thousands, francs": Form(group="'", before="CHF "),
    "thousands, UTF-16 of Excel": Form(group="\u00a0", decimal=",", separator="\t", encoding="utf-16", ending="\r\n"),
}


@pytest.mark.parametrize("places", [0, 2])
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_csv_reader_takes_for_numbers_is_refused(cache: Path, tmp_path: Path, name: str, places: int) -> None:
    assert "own.csv" in refused(tmp_path / "own.csv", table(LARGE, CLASSES.tolist(), REFUSED[name], places))


AMBIGUOUS = {  # the text, the setting that decides, its values and the first feature of the first row under each
    "quoted 1,234": (
        lines(lambda row: f'"{row + 1},{row % 9 + 111}",{row % 2}', "price,class\n"),
        "decimal",
        {"comma": 1.111},
    ),
    "1,234 between tabs": (
        lines(lambda row: f"{row + 1},{row % 9 + 111}\t{row % 2}", "price\tclass\n"),
        "decimal",
        {"comma": 1.111},
    ),
    "1.234 between semicolons": (
        lines(lambda row: f"{row + 1}.{row % 9 + 111};{row % 2}", "price;class\n"),
        "decimal",
        {"point": 1.111},
    ),
    "1.250 beside whole numbers": (
        lines(lambda row: f"{'7' if row % 2 else f'{row + 1}.250'},{row % 3}", "price,class\n"),
        "decimal",
        {"point": 1.25},
    ),
    "a first line of 0,1,2": (
        lines(lambda row: f"{row % 3},{row % 7 + 3},{row % 5}", "0,1,2\n"),
        "header",
        {"yes": 3.0, "no": 1.0},
    ),
    "a first line of 1,2,3": (
        lines(lambda row: f"{row % 3},{row % 7 + 3},{row % 5}", "1,2,3\n"),
        "header",
        {"yes": 3.0, "no": 2.0},
    ),
    "years and a word": (
        lines(lambda row: f"{'ab'[row % 2]},{row % 7 + 3},{row % 5}", "country,2019,2020\n"),
        "header",
        {"yes": 3.0, "no": 2019.0},
    ),
    "years and a word between semicolons": (
        lines(lambda row: f"{'ab'[row % 2]};{row % 7 + 3};{row % 5}", "country;2021;2023\n"),
        "header",
        {"yes": 3.0, "no": 2021.0},
    ),
    "five counted columns": (
        lines(lambda row: ",".join(str(row * place % 7) for place in range(1, 6)), "0,1,2,3,4\n"),
        "header",
        {"yes": 0.0, "no": 1.0},
    ),
    "texts alone": (
        lines(lambda row: f"{'ab'[row % 2]},{'xyz'[row % 3]}", "kind,colour\n"),
        "header",
        {"yes": 0.0, "no": 0.0},
    ),
    "names and numbers of columns": (
        lines(lambda row: f"{row},{row % 3},{row % 9},{row % 7}", ",0,1,2\n"),
        "header",
        {"yes": 0.0},
    ),
    "texts in an array": (
        lines(lambda row: f"{'ab'[row % 2]},{row % 9},{row % 7}", "0,1,2\n"),
        "header",
        {"yes": 0.0},
    ),
    "commas and blanks": (
        lines(lambda row: f"{row % 2},a {row % 3},b", "class,a b,c\n"),
        "separator",
        {"comma": 1.0},
    ),
    "decimal commas or texts": (
        lines(lambda row: f"{row % 2},a;{'xy'[row % 2]},b", "a,b;c,d\n"),
        "separator",
        {"comma": 1.0},
    ),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_can_be_read_in_two_ways_is_refused_and_a_setting_reads_it(cache: Path, tmp_path: Path, name: str) -> None:
    content, setting, readings = AMBIGUOUS[name]
    assert f"--{setting}" in refused(tmp_path / "own.csv", content)
    for value, first in readings.items():
        prepared = prepare(tmp_path / "own.csv", **{setting: value})
        assert any(np.float32(first) in rows[:, 0] for rows in (prepared.train_x, prepared.test_x))
        assert prepared.record.train_rows + prepared.record.test_rows == 40 + (value == "no")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("a,b,class\n1,2,0\n1,5,2,1\n3,4,0\n", ("line 3", "got 4")),  # a decimal comma without quotes
        ("a;b;class\n1;2;0\n1;5;2;1\n3;4;0\n", ("line 3", "got 4")),
        ("exported by LabView\na,b,class\n1,2,0\n2,3,1\n", ("line", "columns")),
        ("a|b|class\n1|2|0\n1|1\n3|4|0\n", ("line 3", "got 2")),
        ("a\tb\tclass\n1\t2\t0\n1\t5\t2\t1\n3\t4\t0\n", ("line 3", "got 4")),
        (lines(lambda row: f'"{row},5",{row}.5,{row % 2}', "a,b,class\n"), ("--decimal", "'0,5'", "'0.5'")),
        (lines(lambda row: f"{row},5;{row}.5;{row % 2}", "a;b;class\n"), ("--decimal", "'0,5'", "'0.5'")),
        (lines(lambda row: f"{'$' if row % 2 else chr(8364)}{row};{row % 3}", "a;class\n"), ("'a'", "line 2")),
        (lines(lambda row: f"{row}{'%' if row % 2 else ''};{row % 3}", "a;class\n"), ("'a'", "line 3")),
        (lines(lambda row: f"{row} kg,{row % 3}", "weight,class\n"), ("line 2", "weight", "0 kg", "--drop weight")),
        (lines(lambda row: f"<{row},{row % 3}", "weight,class\n"), ("line 2", "weight", "<0", "--drop weight")),
        (lines(lambda row: f'"{row + 1},23,456",{row % 3}', "lakh,class\n"), ("line 2", "lakh", "1,23,456")),
        (lines(lambda row: f"{row}-,{row % 3}", "sap,class\n"), ("line 2", "sap", "0-", "--drop sap")),
        (lines(lambda row: f"2024-01-{row % 28 + 1:02},{row % 3}", "day,class\n"), ("line 2", "day", "2024-01-01")),
        (lines(lambda row: f"{row % 28 + 1}.12.2024;{row % 3}", "day;class\n"), ("line 2", "day", "1.12.2024")),
        (lines(lambda row: f"{row % 12 + 1}/31/24,{row % 3}", "day,class\n"), ("line 2", "day", "1/31/24")),
        (lines(lambda row: f"{row % 24}:30,{row % 3}", "time,class\n"), ("line 2", "time", "0:30")),
        (lines(lambda row: f"2024-01-01T{row % 24:02}:30:00Z,{row % 3}", "time,class\n"), ("line 2", "time")),
        (lines(lambda row: f"{row % 28 + 1}-Jan-2024,{row % 3}", "day,class\n"), ("line 2", "day", "1-Jan-2024")),
        (lines(lambda row: f"{row if row % 3 else f'x{row}'},{row % 3}", "mixed,class\n"), ("line 2", "x0")),
        (lines(lambda row: f"{f'x{row}' if row % 3 else row},{row % 3}", "mixed,class\n"), ("mixed", "'0'", "line 2")),
        (lines(lambda row: f"{row};{row % 3}" if row < 30 else f"zero;{row % 3}", "a;class\n"), ("line 32", "zero")),
        (lines(lambda row: f'"{row},5",{row % 3}' if row else "unknown,0", "a,class\n"), ("line 2", "unknown")),
        (lines(lambda row: f"name{row},{row % 3}", "name,class\n", rows=300), ("300", "--drop name")),
    ],
)
def test_what_is_no_table_of_numbers_and_categories_is_refused(
    cache: Path, tmp_path: Path, content: str, parts: Sequence[str]
) -> None:
    sentence = refused(tmp_path / "own.csv", content)
    assert all(part in sentence for part in parts), sentence


@pytest.mark.parametrize(
    ("cell", "separator"), [("1.234", ";"), ("1,234", ";"), ('"1,234"', ","), ("$5", ","), ("5%", "\t"), ("1 234", "|")]
)
def test_what_the_first_rows_do_not_show_is_refused_where_it_stands(
    cache: Path, tmp_path: Path, cell: str, separator: str
) -> None:
    content = lines(
        lambda row: f"{row % 900 if row < 1_500 else cell}{separator}{row % 3}", f"a{separator}class\n", 1_600
    )
    sentence = refused(tmp_path / "own.csv", content)
    assert "line 1,502" in sentence and cell.strip('"') in sentence
