"""Tables as CSV that a spreadsheet shows and does not compute."""

import re
from typing import TYPE_CHECKING

from harness.base.printable import printable

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_COMPUTED = ("=", "+", "-", "@", "\t", "\r")


def csv_cell(value: object) -> object:
    """Return a cell as it is written: a text that a spreadsheet would compute begins with an apostrophe."""
    if not isinstance(value, str):
        return value
    is_computed = value.startswith(_COMPUTED) and not _NUMBER.fullmatch(value)
    return f"'{printable(value)}" if is_computed else printable(value)


def csv_text(frame: "pd.DataFrame") -> str:
    """Return `frame` as CSV, its headings first."""
    cells = frame.rename(columns=csv_cell)
    for place, kind in enumerate(cells.dtypes):
        if getattr(kind, "kind", "O") not in "biufcmM":
            cells.isetitem(place, cells.iloc[:, place].map(csv_cell).to_numpy())
    text: str = cells.to_csv(index=False, lineterminator="\n")
    return text
