"""Where a table of a user's own comes from, CSV text or Parquet: its columns' names, first rows and record batches."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.datasets.csv_form import CsvSettings, Sample, find_form
from harness.datasets.csv_rows import POINT, check_quotes, line_of_row, stream_csv
from harness.datasets.safe_reading import readable

PARQUET = ".parquet"
_SAMPLE_ROWS = 1_000
_CHUNK_ROWS = 1 << 16


class TableSource(Protocol):
    """A table. `names` are those of the columns, none without a header; `decimal` is empty where it is not known."""

    path: Path
    names: tuple[str, ...]
    width: int
    decimal: str
    separator: str
    encoding: str
    sample: Sample

    def stream(self, types: Mapping[int, str]) -> Iterator[Any]:
        """Yield record batches of the columns at these places, ``float64`` or ``string``."""

    def position(self, row: int) -> str:
        """Return where a user finds a row, which is counted from 0."""


class CsvSource:
    """CSV text, also packed by gzip."""

    def __init__(self, path: Path, settings: CsvSettings) -> None:
        """Find out how the file is written.

        Raises:
            UserError: it is no table, or can be read in two ways.
        """
        self.path = path
        self._form, self.sample = find_form(path, settings)
        check_quotes(self._form)
        self.names = self._form.names
        self.width = self._form.width
        self.decimal = self._form.decimal
        self.separator = self._form.separator
        self.encoding = self._form.encoding

    def stream(self, types: Mapping[int, str]) -> Iterator[Any]:
        """Yield record batches; raise a UserError with the line of what cannot be read."""
        yield from stream_csv(self._form, types)

    def position(self, row: int) -> str:
        """Return ``line N``."""
        return f"line {line_of_row(self._form, row):,}"


class ParquetSource:
    """A Parquet file, whose columns have names and types; a date or a list is a text that is refused as such."""

    decimal = POINT
    separator = ""
    encoding = ""

    def __init__(self, path: Path, settings: CsvSettings) -> None:
        """Open the file and read its first rows.

        Raises:
            UserError: it is damaged, or a setting that is about CSV text is given.
        """
        from pyarrow import parquet

        for name in ("separator", "decimal", "header"):
            value = getattr(settings, name)
            if value:
                raise UserError(f"{setting(name, value)} is for CSV text, and '{path}' is Parquet: leave it out")
        self.path = path
        with readable(path, "Parquet file"), path.open("rb") as opened:
            file = parquet.ParquetFile(opened)
            self.names = tuple(file.schema_arrow.names)
            self.width = len(self.names)
            batch = next(file.iter_batches(batch_size=_SAMPLE_ROWS), None)
            columns = [_as_texts(column) for column in batch.columns] if batch else []
        self.sample = Sample(rows=tuple(zip(*columns, strict=True)))

    def stream(self, types: Mapping[int, str]) -> Iterator[Any]:
        """Yield record batches.

        Raises:
            UserError: the file is damaged, or a value is not of its column's type.
        """
        import pyarrow as pa
        from pyarrow import parquet

        names = [f"c{place}" for place in types]
        with self.path.open("rb") as opened:
            with readable(self.path, "Parquet file"):
                batches = parquet.ParquetFile(opened).iter_batches(batch_size=_CHUNK_ROWS, use_threads=False)
            while True:
                with readable(self.path, "Parquet file"):
                    batch = next(batches, None)
                if batch is None:
                    return
                columns = [self._cast(batch.column(place), place, kind) for place, kind in types.items()]
                yield pa.RecordBatch.from_arrays(columns, names=names)

    def _cast(self, column: Any, place: int, kind: str) -> Any:
        import pyarrow as pa

        try:
            if kind == "string":
                return column.cast(pa.string()).fill_null("")
            return column.cast(pa.float64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UserError(
                f"'{self.path}' column '{self.names[place]}' is not numbers that float64 holds ({reason}): leave it "
                f"out with {setting('drop', self.names[place])}"
            ) from error

    def position(self, row: int) -> str:
        """Return ``row N``, counted from 1."""
        return f"row {row + 1:,}"


def _as_texts(column: Any) -> list[str]:
    """Return the values of a column as a CSV file has them, empty where they are missing."""
    return ["" if value is None else str(value).strip() for value in column.to_pylist()]


def open_table(path: Path, settings: CsvSettings) -> TableSource:
    """Return the source of the table in a file, by its own name.

    Raises:
        UserError: it cannot be read, is no table, or can be read in two ways.
    """
    return ParquetSource(path, settings) if path.suffix.lower() == PARQUET else CsvSource(path, settings)
