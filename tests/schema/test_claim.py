"""The ledger of the papers' claims: what it holds, and what is refused."""

from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.files import resource
from harness.schema.claim import CLAIMS_FILE, ClaimMetric, read_published
from tests.labs.sentences import refuses

LEDGER = read_published(resource(CLAIMS_FILE))

# (experiment, rule, base, count, value): what paper A prints, and what it only shows as a chart (None).
FIGURES = [
    ("mnist-dnn", "speedup", 1, 32, 11.6),
    ("mnist-cnn", "rows-in-equal-time", 16, 64, 1.92),
    ("adult-dnn", "speedup-of-each-step", 5, 40, None),
    ("acoustic-dnn", "speedup-and-slope", 1, 40, None),
    ("cifar10-dnn", "speedup", 16, 64, 3.37),
    ("cifar10-dnn", "speedup", 16, 16, 2.97),
    ("cifar10-dnn", "launches-that-reach-an-accuracy", 0, 0, 0.55),
    ("cifar10-cnn", "speedup-beside-another", 4, 64, None),
    ("higgs-dnn", "speedup", 20, 80, 2.6),
]
TEXTS = [
    "speedup-of-larger-networks",
    "speedup-of-an-epoch-beside-the-start",
    "extra-reading-of-training",
    "computation-and-exchange",
    "loss-difference",
    "rate-of-parameter-servers",
]
PAPER_B = {
    "AlexNet": ([1.94, 3.40, 6.32, 10.9], [1.37, 1.93]),
    "GoogLeNet": ([1.84, 3.57, 7.25, 14.7], [1.87, 3.21]),
    "InceptionV3": ([1.87, 3.57, 7.29, 14.5], [1.70, 2.77]),
    "ResNet-50": ([1.84, 3.61, 7.60, 15.3], [1.69, 2.67]),
}


def test_the_ledger_holds_every_claim_of_paper_a() -> None:
    found = LEDGER.of("A")
    assert [(c.experiment, c.metric, c.base, c.count, c.value) for c in found[: len(FIGURES)]] == FIGURES
    assert [c.metric for c in found[len(FIGURES) :]] == TEXTS
    assert [c.figure for c in found[: len(FIGURES)]] == ["1", "2", "3", "4", "5", "5", "5", "6", ""]
    assert {c.figure for c in found if c.kind == "chart"} == {"3", "4", "6"}  # no numbers: none are invented
    assert [round(100 * c.efficiency) for c in found if c.efficiency and not c.erratum] == [36, 48, 84, 65]
    assert [c.value for c in found if c.erratum] == [2.97]
    assert {c.metric for c in LEDGER.claims} == set(ClaimMetric)


def test_the_ledger_holds_every_number_of_paper_b() -> None:
    for network, (cpus, gpus) in PAPER_B.items():
        for units, counts, values in (("CPUs", (2, 4, 8, 16), cpus), ("GPUs", (2, 4), gpus)):
            found = [c for c in LEDGER.of("B", network) if c.units == units]
            assert [(c.count, c.value) for c in found] == list(zip(counts, values, strict=True))
            assert all(c.kind == "chart" and c.base == 1 and c.reading == 0.03 for c in found)


def test_the_ledger_says_where_and_how_the_papers_measured() -> None:
    ours, other = LEDGER.papers
    facts = ("Haswell", "64 GB", "InfiniBand", "Open MPI 1.8.3")
    assert [fact for fact in facts if fact not in ours.testbed] == []
    assert "K40" in other.testbed
    assert {c.sync for c in LEDGER.of("A")} == {"weights:epoch"} and {c.sync for c in LEDGER.of("B")} == {"gradients"}
    (higgs,) = LEDGER.of("A", "higgs-dnn")
    assert higgs.rows == 10_900_000


def test_a_damaged_ledger_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "published.toml"
    path.write_text("[[claim]]\npaper = 'A'\n")
    with pytest.raises(UserError, match="damaged"):
        read_published(path)
    with refuses("directory"):
        read_published(tmp_path / "absent.toml")
