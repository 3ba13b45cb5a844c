"""Numbers that float32 does not hold: Unix times, northings, Julian dates.

Networks are trained in float32, which has seven digits. Where it changes a value of a column by more than a thousandth
of the column's standard deviation, the column is stored as (value - mean) / deviation, computed in float64 over all
rows. Where float64 does not tell the values apart either, the column is refused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.datasets.dataset import Array
from harness.schema.data_record import CentredColumn

_MOST_LOST = 1e-3
_WHOLE = 2.0**53  # from here on float64 leaves out whole numbers
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnMeasures:
    """What the rows of float64 columns are like, each of a row's shape; missing values (NaN) do not count.

    `lost` is the largest change by float32, `low` and `high` are the ends of the values.
    """

    mean: Doubles
    deviation: Doubles
    lost: Doubles
    low: Doubles
    high: Doubles


def measure_columns(chunks: Iterable[Array], features: tuple[int, ...]) -> ColumnMeasures:
    """Return the measures of columns over `chunks`, [rows, *features] (Chan, Golub, LeVeque 1979)."""
    count = np.zeros(features)
    mean = np.zeros(features)
    squares = np.zeros(features)
    lost = np.zeros(features)
    low = np.full(features, np.inf)
    high = np.full(features, -np.inf)
    for chunk in chunks:
        present = ~np.isnan(chunk)
        rows = present.sum(axis=0)
        values = np.where(present, chunk, 0.0)
        total = np.maximum(count + rows, 1)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            chunk_mean = values.sum(axis=0) / np.maximum(rows, 1)
            delta = chunk_mean - mean
            squares += (np.where(present, chunk - chunk_mean, 0.0) ** 2).sum(axis=0)
            squares += delta**2 * (count * rows / total)
            mean = mean + delta * (rows / total)
            change = np.abs(values - values.astype(np.float32))
        count += rows
        lost = np.maximum(lost, np.nan_to_num(change, nan=np.inf).max(axis=0, initial=0.0))
        low = np.minimum(low, np.where(present, chunk, np.inf).min(axis=0, initial=np.inf))
        high = np.maximum(high, np.where(present, chunk, -np.inf).max(axis=0, initial=-np.inf))
    deviation = np.sqrt(squares / np.maximum(count, 1))
    return ColumnMeasures(mean=mean, deviation=deviation, lost=lost, low=low, high=high)


@dataclass(frozen=True, kw_only=True, slots=True)
class Centring:
    """What is taken from each column and by what it is divided then; 0 and 1 where a column stays as it is."""

    centre: Doubles
    scale: Doubles
    chosen: npt.NDArray[np.bool_]

    def apply(self, rows: Array) -> Array:
        """Return rows, [rows, *features], centred and scaled, as float32."""
        single: Array = ((rows - self.centre) / self.scale).astype(np.float32)
        return single


def find_centring(
    path: Path, measured: ColumnMeasures, names: Sequence[str], numbers: npt.NDArray[np.bool_] | None = None
) -> Centring:
    """Return the columns, among those that are `numbers`, that float32 does not hold, and how they are changed.

    Raises:
        UserError: float64 does not tell the values of a column apart either; its name is said.
    """
    largest = np.maximum(np.abs(measured.low), np.abs(measured.high))
    constant = measured.low == measured.high
    told_apart = np.isfinite(measured.deviation) & (np.spacing(largest) <= _MOST_LOST * measured.deviation)
    # A constant without a fraction may be one only because float64 has rounded its values.
    blurred = np.where(constant, largest >= _WHOLE, ~told_apart)
    spread = np.where(constant, largest, measured.deviation)
    chosen = measured.lost > _MOST_LOST * spread
    if numbers is not None:
        blurred &= numbers
        chosen &= numbers
    if blurred.any():
        name = names[int(np.flatnonzero(blurred.ravel())[0])]
        raise UserError(
            f"'{path}' column '{name}' has numbers up to {largest.ravel()[blurred.ravel()][0]:.17g}, which float64 "
            "cannot tell apart or square: take a constant off them in the file, or leave the column out"
        )
    return Centring(
        centre=np.where(chosen, measured.mean, 0.0),
        scale=np.where(chosen & ~constant, measured.deviation, 1.0),
        chosen=chosen,
    )


def centred_columns(centring: Centring, names: Sequence[str]) -> tuple[CentredColumn, ...]:
    """Return what the record says of the columns that were changed."""
    places = map(int, np.flatnonzero(centring.chosen.ravel()))
    centres = centring.centre.ravel()
    scales = centring.scale.ravel()
    return tuple(
        CentredColumn(name=names[place], centre=float(centres[place]), scale=float(scales[place])) for place in places
    )
