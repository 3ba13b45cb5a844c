"""Gradients in 16 bits: how far off, the same on every rank, refused where they lose too much."""

import json

import pytest

from harness.schema.record import read_run
from harness.schema.record_notes import NoteCode
from tests.labs.factories import make_workload
from tests.labs.sentences import refuses, says
from tests.mpi.launch import PROGRAMS, result, run_ranks

# Half a unit in the last place, 8 and 11 significant bits: of three ranks' values and of one sum, relative to it.
LIMITS = {"bf16": 3 * 2**-9, "fp16": 3 * 2**-12}


@pytest.mark.mpi
def test_sums_in_16_bits_are_as_near_as_their_digits_allow() -> None:
    for case, found in result(3, "wires.py").items():
        wire = case.split()[1]
        assert 0 < found["error"] < LIMITS[wire], case
        assert found["same"] and found["dtype"] == "float32", case
        assert f"{wire} on the wire" in found["name"], case
        assert f"{wire} on the wire: sums of gradients were at most" in "; ".join(found["notes"]), case
        assert found["calls"] > 0
        assert found["rounded once"], case
        # 1e-9 is below the least float16 and well within bfloat16, which has float32's exponents.
        assert bool(found["lost"]) == (wire == "fp16"), case
    says(found["lost"], "--wire fp16")


@pytest.mark.mpi
def test_training_with_bf16_on_the_wire_says_so(tmp_path, cache) -> None:
    wires = ("float32", "bf16")
    options = ["--dataset", "adult", "--data-kind", "synthetic", "--samples", "6400", "--epochs", "2"]
    words = [[*options, "--wire", wire, "--record", str(tmp_path / wire)] for wire in wires]
    finished = run_ranks(2, PROGRAMS / "trainings.py", json.dumps(words), "[]")
    assert finished.returncode == 0, finished.stderr[-2000:]
    losses = {}
    for wire in wires:
        record = read_run(tmp_path / wire)
        assert record.weights.identical
        assert ("bf16 on the wire" in record.provenance.reduction) == (wire == "bf16")
        note = record.note(NoteCode.WIRE_ERROR)
        assert (note.values["batches"] if note else 0) == (3 if wire == "bf16" else 0)  # before, and after each epoch
        losses[wire] = record.epochs[-1].train_loss
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=0.02) and losses["bf16"] != losses["float32"]


def test_weights_do_not_travel_in_16_bits() -> None:
    with refuses("--wire bf16", "--sync gradients"):
        make_workload(wire="bf16", sync="weights:epoch")
    with refuses("did you mean", "bf16"):
        make_workload(wire="bf61")
