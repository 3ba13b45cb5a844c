"""DataRecord: the data that a launch was trained on, and what was understood of a file of the user's own."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TextColumn:
    """A column of texts and the number of its categories."""

    name: str
    categories: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnGaps:
    """A column in which `rows` cells are missing: numbers are filled in with the mean, texts have no category there."""

    name: str
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CentredColumn:
    """A column of numbers that float32 does not hold: it is stored as (value - `centre`) / `scale`."""

    name: str
    centre: float
    scale: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnLeftOut:
    """A column that is not trained on. `reason`: ``asked`` for, an ``index`` that numbers the rows, or ``empty``."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TableColumns:
    """What was understood of a table's form and columns.

    `separator`, `decimal` and `encoding` are those of `harness.datasets.csv_rows.CsvForm`; a Parquet file has no
    separator and no encoding. `numbers` and `texts` are the features. `label_choice`: the label was ``asked`` for,
    found ``by name``, or is the ``first`` column.
    """

    separator: str
    decimal: str
    encoding: str
    header: bool
    numbers: tuple[str, ...]
    texts: tuple[TextColumn, ...]
    label: str
    label_choice: str
    left_out: tuple[ColumnLeftOut, ...]
    gaps: tuple[ColumnGaps, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnFile:
    """What was understood of a file of the user's own.

    `rows` are all rows, with those to test on. `class_names` are the labels as they stand in the file, `class_rows` the
    rows of each. `table` is None where the file has arrays: the features' names are then `arrays`. `centred` are the
    columns that float32 does not hold. `shuffled`: rows that were sorted by class are trained on in random order, by
    the seed that drew the test rows.
    """

    file: str
    rows: int
    class_names: tuple[str, ...]
    class_rows: tuple[int, ...]
    table: TableColumns | None = None
    arrays: tuple[str, ...] = ()
    centred: tuple[CentredColumn, ...] = ()
    shuffled: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRecord:
    """The data that was trained on. `kind` is ``real`` or ``synthetic``; `sha256` is of the source.

    `held_out` says that the test rows were taken from the training part because no test part was there,
    `held_out_seed` what drew them, the same share of every class; None where they are the last rows. `own_file` is what
    was understood of a file of the user's own.
    `note` is one sentence for the report, such as why a synthetic stand-in stood in.
    """

    name: str
    kind: str
    sha256: str
    train_rows: int
    test_rows: int
    features: tuple[int, ...]
    classes: int
    held_out: bool = False
    held_out_seed: int | None = None
    own_file: OwnFile | None = None
    note: str = ""
