"""What a script asks of a data set."""

from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError, unknown

KNOWN = ("mnist", "cifar10", "cifar100")
FORMATS = ("csv", "hdf5", "netcdf", "pnetcdf", "npz")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The arguments of `DataSet`, checked. `valid_pct` and `test_pct` are parts of the rows, 0 to 1.

    Raises:
        UserError: one of them is out of its range, or a file is missing or not wanted.
    """

    name: str
    normalize: float = 1.0
    train_file: str | Path | None = None
    validation_file: str | Path | None = None
    test_file: str | Path | None = None
    valid_pct: float | None = None
    test_pct: float = 0.0
    one_hot: bool = True
    label: str | int | None = None
    data_dir: str | Path | None = None

    def __post_init__(self) -> None:
        if self.name not in (*KNOWN, *FORMATS):
            raise unknown("data set", self.name, (*KNOWN, *FORMATS))
        if not self.normalize > 0:
            raise UserError(f"normalize {self.normalize} is no divisor: give a number above 0, such as 255.0")
        held = (self.valid_pct or 0.0, self.test_pct)
        if min(held) < 0 or sum(held) >= 1:
            raise UserError(f"valid_pct {held[0]} and test_pct {held[1]} leave no training rows: use parts of 1")
        if self.name in KNOWN and self.train_file is not None:
            raise UserError(f"train_file does not go with {self.name.upper()}: leave it out, or name another data set")
        if self.name not in KNOWN and self.train_file is None:
            raise UserError(f"{self.name.upper()} has no train_file: give one")
        for field in ("train_file", "validation_file", "test_file"):
            path = getattr(self, field)
            if path is not None and not Path(path).exists():
                raise UserError(f"{field} '{path}' is not there: check the path")
        if self.label is not None and self.name != "csv":
            raise UserError(f"label {self.label!r} is for CSV files: leave it out for {self.name.upper()}")
