"""What was understood of a user's own file, in five lines."""

from collections.abc import Sequence

from harness.datasets.csv_dialect import separator_name
from harness.schema.data_record import DataRecord, OwnFile, TableColumns

_SHOWN = 8
_CHOICES = {
    "asked": "which LABEL= names",
    "by name": "by its name",
    "first": "the first, as none is called label, target or class; LABEL= names another",
}
_REASONS = {"asked": "DROP=", "index": "it numbers or names the rows", "empty": "it is empty"}


def own_file_lines(record: DataRecord) -> tuple[str, ...]:
    """Return five lines of the rows, columns, label, what is left out and the test rows; none of other data."""
    own_file = record.own_file
    if own_file is None:
        return ()
    return (
        f"rows: {own_file.rows:,} in {own_file.file}{_form(own_file.table)}",
        f"columns: {_columns(own_file, record)}",
        f"label: {_label(own_file)}",
        f"left out: {_left_out(own_file.table)}",
        f"test rows: {_test_rows(record)}",
    )


def _form(table: TableColumns | None) -> str:
    if table is None:
        return ""
    decimal = "comma" if table.decimal == "," else "point"
    header = "a header" if table.header else "no header"
    encoding = "" if table.encoding.startswith("utf-8") else f", {table.encoding.upper()}"
    return f", columns separated by {separator_name(table.separator)}, decimal {decimal}, {header}{encoding}"


def _columns(own_file: OwnFile, record: DataRecord) -> str:
    if own_file.table is None:
        shape = " x ".join(map(str, record.features))
        return f"arrays {_listed(own_file.arrays)}, {shape} numbers a row"
    texts = [f"{column.name} ({column.categories} different)" for column in own_file.table.texts]
    written = [f"{column.name} (in {column.unit})" if column.unit else column.name for column in own_file.table.written]
    gaps = [f"{column.name} {column.rows:,}" for column in own_file.table.gaps]
    parts = (
        (f"{len(own_file.table.numbers)} of numbers: {_listed(own_file.table.numbers)}", own_file.table.numbers),
        (f"{len(texts)} of texts: {_listed(texts)}", texts),
        (f"thousands marks and units taken off: {_listed(written)}", written),
        (f"missing cells filled in: {_listed(gaps)}", gaps),
    )
    return "; ".join(part for part, names in parts if names)


def _label(own_file: OwnFile) -> str:
    counts = [f"{name} {rows:,}" for name, rows in zip(own_file.class_names, own_file.class_rows, strict=True)]
    classes = f"{len(counts)} classes: {_listed(counts)}"
    if own_file.table is None:
        return f"array '{own_file.arrays[1]}', {classes}"
    name = own_file.table.label if own_file.table.label.startswith("column ") else f"column '{own_file.table.label}'"
    return f"{name}, {classes} ({_CHOICES[own_file.table.label_choice]})"


def _left_out(table: TableColumns | None) -> str:
    if table is None or not table.left_out:
        return "nothing"
    return _listed([f"{column.name} ({_REASONS[column.reason]})" for column in table.left_out])


def _test_rows(record: DataRecord) -> str:
    if record.held_out_seed is None:
        return f"{record.test_rows:,}, the file's own"
    drawn = f"{record.test_rows:,} held out, of every class its share, drawn by seed {record.held_out_seed}"
    shuffled = record.own_file is not None and record.own_file.shuffled
    return drawn + ("; the others in random order, as the file is sorted by class" if shuffled else "")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
