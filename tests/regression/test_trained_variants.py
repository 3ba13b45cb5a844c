"""Every kind of variant is trained by its command. Ranks are started, for what they find is what a comparison is of."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.regression import variant_turns, variants
from harness.regression.variant_turns import COMPARISONS
from harness.regression.variants import HERE
from harness.schema.record import RunRecord, read_run

pytestmark = [pytest.mark.mpi, pytest.mark.e2e]

SMALL = ("--dataset=adult", "--data-kind=synthetic", "--samples=1280", "--epochs=2", "--nodes=2", "--budget=0.01")

# A network that notes in what environment and at what priority a rank builds it.
OWN_NETWORK = """
import os
from pathlib import Path

import keras


def network(features, classes):
    note = " ".join([os.environ.get("A", "-"), os.environ.get("B", "-"), str(os.nice(0))])
    Path({folder!r}, str(os.getpid())).write_text(note)
    rows = keras.Input(features)
    return keras.Model(rows, keras.layers.Dense(classes)(rows))
"""


@pytest.fixture(autouse=True)
def one_short_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first block be the last one, as short as it is asked for."""
    monkeypatch.setattr(variant_turns, "BLOCK_S", 0.0)


def trained(folder: Path, command: Sequence[str]) -> list[RunRecord]:
    """Give the command; return the record of each variant, in the order of the command line."""
    places = [f"--results={folder / 'results'}", f"--reports={folder / 'reports'}"]
    result = CliRunner().invoke(main, [*command, *SMALL, *places], standalone_mode=False)
    assert result.exception is None, (result.exception, result.output)
    assert list((folder / "reports").glob("*/index.html"))
    (comparison,) = (folder / "results" / COMPARISONS).iterdir()
    records = [read_run(path.parent) for path in sorted(comparison.glob("*/*/run.json"))]
    assert len({record.block for record in records}) == 1 and not any(record.losses for record in records)
    return records


@pytest.mark.usefixtures("cache")
def test_a_commit_trains_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (HERE / ".git").exists():
        pytest.skip("no git checkout")
    clone = tmp_path / "clone"
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{HERE}", str(clone)], check=True)
    version = clone / "harness/base/__init__.py"
    version.write_text(f'{version.read_text()}\n__version__ = "9.9.9"\n')
    subprocess.run([*git, "commit", "-qam", "Another version"], check=True)
    monkeypatch.setattr(variants, "HERE", clone)
    changed, here = trained(tmp_path, ["compare", "commit:HEAD", "here"])
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert (changed.provenance.commit, changed.provenance.harness) == (commit, "9.9.9")
    assert here.provenance.harness != "9.9.9" and here.provenance.commit != commit


@pytest.mark.usefixtures("cache")
def test_models_variables_and_prefixes_are_those_of_their_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is the variant in one command, and what all of them train in the other."""
    noted = tmp_path / "noted"
    noted.mkdir()
    (tmp_path / "mynetworks.py").write_text(OWN_NETWORK.format(folder=str(noted)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["compare", "here", "mynetworks:network"]
    usual, own = trained(tmp_path / "models", words)
    assert (usual.point.workload.model, own.point.workload.model) == ("dnn", "mynetworks:network")
    assert own.weights.parameters < usual.weights.parameters
    for note in noted.iterdir():
        note.unlink()
    words = ["compare", "env:A=1,B=2", "run:nice -n 1", "--model=mynetworks:network"]
    records = trained(tmp_path / "starts", words)
    found = [(noted / str(rank.pid)).read_text() for record in records for rank in record.ranks]
    usual_priority = found[0].split()[2]
    assert found[:2] == [f"1 2 {usual_priority}"] * 2
    assert found[2:] == [f"- - {int(usual_priority) + 1}"] * 2


@pytest.mark.usefixtures("cache")
def test_policies_train_in_turns(tmp_path: Path) -> None:
    words = ["policies", "sync=gradients", "sync=weights:epoch", "--target=0.5"]
    records = trained(tmp_path, words)
    assert [record.point.workload.sync for record in records] == ["gradients", "weights:epoch"]
