"""Numbers that float32 does not hold are centred and scaled before, or refused; others stay as they are."""

from pathlib import Path

import numpy as np
import pytest

from harness import datasets
from harness.schema.data_record import OwnFile
from tests.labs.own_files import prepare, refused
from tests.labs.sentences import refuses

ROWS = 60
RNG = np.random.default_rng(3)


def own(prepared: datasets.Prepared) -> OwnFile:
    assert prepared.record.own_file is not None
    return prepared.record.own_file


def write_table(path: Path, cells: list[str]) -> None:
    path.write_text("a,b,class\n" + "".join(f"{cell},{row % 7},{row % 2}\n" for row, cell in enumerate(cells)))


def restored(prepared: datasets.Prepared, place: int = 0) -> list[float]:
    """Return the numbers of a centred feature as they stood in the file, sorted."""
    (column,) = own(prepared).centred
    rows = np.concatenate([prepared.train_x, prepared.test_x])[:, place].astype(np.float64)
    return sorted((rows * column.scale + column.centre).tolist())


UNHELD = {
    "unix time": [str(1_700_000_000 + 60 * row) for row in range(ROWS)],
    "unix time in nanoseconds": [str(1_700_000_000_000_000_000 + 10**9 * row) for row in range(ROWS)],
    "julian date": [f"{2_460_000.5 + row / 24:.5f}" for row in range(ROWS)],
    "northing": [f"{5_312_000 + row / 4:.2f}" for row in range(ROWS)],
    "with gaps": [str(1_700_000_000 + row) if row % 5 else "" for row in range(ROWS)],
    "huge": [f"{row + 1}e100" for row in range(ROWS)],
    "tiny": [f"{row + 1}e-100" for row in range(ROWS)],
}


@pytest.mark.parametrize("name", UNHELD)
def test_numbers_that_float32_does_not_hold_are_centred_and_scaled(cache: Path, tmp_path: Path, name: str) -> None:
    write_table(tmp_path / "own.csv", UNHELD[name])
    prepared = prepare(tmp_path / "own.csv")
    (column,) = own(prepared).centred
    assert column.name == "a" and "a (minus" in prepared.record.note
    assert any("a" in line and "centred" in line for line in datasets.own_file_lines(prepared.record))
    written = np.array([float(cell) for cell in UNHELD[name] if cell])
    read = np.array(restored(prepared))
    spread = written.std()
    distances = np.abs(read[:, None] - written[None, :]).min(axis=0)
    assert distances.max() < 1e-6 * spread
    assert np.abs(prepared.train_x[:, 0]).max() < 5


@pytest.mark.parametrize(
    "cells",
    [
        [str(row) for row in range(ROWS)],
        [f"{row}.25" for row in range(ROWS)],
        [str(16_000_000 + row) for row in range(ROWS)],  # whole numbers that float32 has
        ["0.1"] * ROWS,
        [repr(float(value)) for value in RNG.normal(1000, 1, ROWS)],
        [f"3.5e{row % 30}" for row in range(ROWS)],
    ],
)
def test_numbers_that_float32_holds_stay_as_they_are(cache: Path, tmp_path: Path, cells: list[str]) -> None:
    write_table(tmp_path / "own.csv", cells)
    prepared = prepare(tmp_path / "own.csv")
    assert own(prepared).centred == ()
    rows = np.concatenate([prepared.train_x, prepared.test_x])[:, 0]
    assert sorted(rows.tolist()) == sorted(np.array(cells, np.float64).astype(np.float32).tolist())


@pytest.mark.parametrize(
    "cells",
    [
        [str(10**18 + row) for row in range(ROWS)],  # 128 apart in float64
        [str(2**60)] * ROWS,
        [f"{row + 1}e200" for row in range(ROWS)],  # its square is infinite
    ],
)
def test_numbers_that_float64_does_not_tell_apart_are_refused(cache: Path, tmp_path: Path, cells: list[str]) -> None:
    write_table(tmp_path / "own.csv", cells)
    assert "'a'" in refused(tmp_path / "own.csv", (tmp_path / "own.csv").read_bytes())
    prepare(tmp_path / "own.csv", drop="a")


def test_arrays_are_centred_too(cache: Path, tmp_path: Path) -> None:
    x = np.column_stack([1.7e9 + np.arange(ROWS), np.arange(ROWS) / 4])
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(ROWS) % 2)
    prepared = prepare(tmp_path / "own.npz")
    assert prepared.train_x.dtype == np.float32
    assert [column.name for column in own(prepared).centred] == ["x[0]"]
    np.testing.assert_allclose(restored(prepared), x[:, 0], atol=1e-5)
    assert sorted(np.concatenate([prepared.train_x, prepared.test_x])[:, 1].tolist()) == x[:, 1].tolist()
    blurred = 2**60 + np.arange(2 * ROWS).reshape(ROWS, 2)
    np.savez(tmp_path / "blurred.npz", x=blurred, y=np.arange(ROWS) % 2)
    with refuses("blurred.npz", "x[0]"):
        prepare(tmp_path / "blurred.npz")
