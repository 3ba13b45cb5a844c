"""Claim: one published number or sentence, and where it was published; the papers' experiments."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from harness.base.errors import UserError
from harness.base.files import read_bytes

CLAIMS_FILE = "results/published.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """A publication whose claims are judged.

    `testbed` is what it was measured on and `sync` its algorithm, as in SYNC=. `note` says what a reader of its
    numbers must know.
    """

    key: str
    title: str
    authors: str
    arxiv: str
    year: int
    testbed: str
    sync: str
    note: str = ""


class ClaimMetric(StrEnum):
    """What is measured for a claim: ``metric`` in results/published.toml. `claims.measures` has the functions."""

    SPEEDUP = "speedup"
    ROWS = "rows-in-equal-time"
    STEPS = "speedup-of-each-step"
    SLOPE = "speedup-and-slope"
    BESIDE = "speedup-beside-another"
    LARGER = "speedup-of-larger-networks"
    ACCURACY = "launches-that-reach-an-accuracy"
    START = "speedup-of-an-epoch-beside-the-start"
    READING = "extra-reading-of-training"
    EXCHANGE = "computation-and-exchange"
    LOSS = "loss-difference"
    SERVERS = "rate-of-parameter-servers"


class Relation(StrEnum):
    """How what is measured is compared: ``relation`` in results/published.toml."""

    ABOUT = "about"
    ABOVE = "above"
    BELOW = "below"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a paper says about one experiment, all of it for equal rows at every rank count (strong scaling).

    It is judged by its `metric`, which has the `relation` to the printed `value` (about) or to a `limit` (above,
    below), at `count` units over `base` units; a base and count of 0 mean that the text names none. `kind` is
    ``stated`` (printed as a number, or said in words) or ``chart`` (a chart only: `value` was read off it within
    `reading`, or is None where nothing could be read). `figure` is empty for what stands in the text only, `experiment`
    for what is said of all of them; `against` is another one that it is compared with. `at` is the count at which a
    curve is said to bend, `seconds` the time that is part of the claim. `rows` are the training rows where they are not
    the data set's own. `sync` is the algorithm, the paper's where it is left empty. `erratum` says what cannot be
    right; such a claim is never judged.
    """

    paper: str
    figure: str
    kind: str
    text: str
    metric: ClaimMetric = ClaimMetric.SPEEDUP
    relation: Relation = Relation.ABOUT
    limit: float = 1.0
    experiment: str = ""
    against: str = ""
    units: str = "cores"
    base: int = 0
    count: int = 0
    at: int = 0
    value: float | None = None
    reading: float = 0.0
    seconds: float = 0.0
    rows: int | None = None
    sync: str = ""
    erratum: str = ""

    @property
    def quantity(self) -> str:
        """What `value` is: ``speedup`` or ``accuracy`` (a fraction)."""
        return "accuracy" if self.metric == ClaimMetric.ACCURACY else "speedup"

    @property
    def efficiency(self) -> float | None:
        """Speedup over the ratio of the units, None where no speedup was published."""
        if self.value is None or self.quantity != "speedup":
            return None
        return self.value * self.base / self.count


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """Every claim, and the papers they come from."""

    papers: tuple[Paper, ...]
    claims: tuple[Claim, ...] = field(default=())

    def of(self, paper: str, experiment: str | None = None) -> tuple[Claim, ...]:
        """Return the claims of `paper`, of one `experiment` when it is given, in the file's order."""
        return tuple(c for c in self.claims if c.paper == paper and experiment in (None, c.experiment))


def read_published(path: Path) -> Published:
    """Read the ledger of published claims; raise a UserError if it is missing, not TOML, or a claim lacks a field."""
    content = read_bytes(path, "published claims")
    try:
        tables = msgspec.toml.decode(content)
        papers = msgspec.convert(tables.get("paper", []), tuple[Paper, ...])
        claims = msgspec.convert(tables.get("claim", []), tuple[Claim, ...])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UserError(f"published claims '{path}' are damaged ({error}): restore the file") from error
    paper_policies = {paper.key: paper.sync for paper in papers}
    with_policies = (replace(claim, sync=claim.sync or paper_policies.get(claim.paper, "")) for claim in claims)
    return Published(papers=papers, claims=tuple(with_policies))


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One experiment: its workload's parts, and its sizes.

    `weights_bytes` of the float32 weights are what one allreduce of a step carries. `rows` and `epochs` are the most
    that `harness paper` trains by default, so that all of it runs in minutes. `bench_rows` (all ranks together) are
    about the data set's own number, or fewer where an epoch would last longer than a second.
    """

    dataset: str
    model: str
    weights_bytes: int
    rows: int
    epochs: int
    bench_rows: int

    @property
    def name(self) -> str:
        """The workload's name, ``mnist-dnn``."""
        return f"{self.dataset}-{self.model}"


# A CNN's row costs a hundred times a DNN's, so CNNs train on a tenth of their rows. Three blocks of each of the seven
# (one rank alone, and two ranks under each of three policies) should end within 15 minutes on 2 cores.
_MEASURED = (
    # data set, model, bytes of the weights, rows, epochs, rows of `harness bench`
    ("mnist", "dnn", 712_440, 60_000, 3, 51_200),
    ("mnist", "cnn", 13_098_536, 6_000, 1, 2_048),
    ("adult", "dnn", 180_408, 32_561, 5, 32_512),
    ("acoustic", "dnn", 122_412, 78_823, 3, 51_200),
    ("cifar10", "dnn", 2_542_840, 50_000, 3, 25_600),
    ("cifar10", "cnn", 17_037_096, 5_000, 1, 1_024),
    ("higgs", "dnn", 126_984, 100_000, 3, 51_200),
)
_ALL_EXPERIMENTS = tuple(
    Experiment(dataset=dataset, model=model, weights_bytes=size, rows=rows, epochs=epochs, bench_rows=bench_rows)
    for dataset, model, size, rows, epochs, bench_rows in _MEASURED
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL_EXPERIMENTS}
