"""Probes are kept and found again."""

from pathlib import Path

import pandas as pd

from harness.probe.probe_store import newest_probe, read_probe, write_probe
from tests.labs.probes import SIZES, make_probe
from tests.labs.sentences import refuses


def test_a_probe_is_kept_and_found_again(tmp_path: Path) -> None:
    found = make_probe({"default": (1e-6, 1e-10), "other": (1e-5, 1e-10)})
    folder = write_probe(found, tmp_path)
    assert write_probe(found, tmp_path) == folder  # the same ranks on the same machine: replaced
    assert read_probe(folder) == found.probe
    fingerprint = found.probe.machine.fingerprint
    assert newest_probe(tmp_path, fingerprint) == found.probe
    samples = pd.read_parquet(folder / "samples.parquet")
    assert len(samples) == 2 * 2 * len(SIZES) * 6
    assert newest_probe(tmp_path, f"{fingerprint}0") is None
    with refuses("run `harness probe` first"):
        read_probe(tmp_path / "nothing")


def test_an_invalid_probe_speaks_for_no_machine(tmp_path: Path) -> None:
    found = make_probe({"default": (1e-6, 1e-10)}, invalid=("other processes kept 1.4 of 2 cores busy",))
    write_probe(found, tmp_path)
    assert newest_probe(tmp_path, found.probe.machine.fingerprint) is None
