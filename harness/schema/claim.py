"""Claim: one published number, and where it was published."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harness.base.errors import UserError

CLAIMS_FILE = "results/published.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """A publication whose claims are judged. `note` says what a reader of its numbers must know."""

    key: str
    title: str
    authors: str
    arxiv: str
    year: int
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a paper says about one experiment: `value` at `count` units, relative to `base` units.

    `figure` is empty for a number that stands in the text only. `quantity` is ``speedup`` (over the base)
    or ``accuracy`` (a fraction; base 0). `kind` is ``stated`` (printed as a number) or ``chart`` (a chart
    only: `value` was read off it within `reading`, or is None where nothing could be read). `erratum`
    says what cannot be right in it; such a claim is never judged.
    """

    paper: str
    figure: str
    experiment: str
    units: str
    base: int
    count: int
    kind: str
    text: str
    value: float | None = None
    quantity: str = "speedup"
    reading: float = 0.0
    erratum: str = ""

    @property
    def efficiency(self) -> float | None:
        """Speedup over the ratio of the units, None where no speedup was published."""
        if self.value is None or self.quantity != "speedup":
            return None
        return self.value * self.base / self.count


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """Every published number, and the papers they come from."""

    papers: tuple[Paper, ...]
    claims: tuple[Claim, ...] = field(default=())

    def of(self, paper: str, experiment: str | None = None) -> tuple[Claim, ...]:
        """Return the claims of `paper`, of one `experiment` when it is given, in the file's order."""
        return tuple(c for c in self.claims if c.paper == paper and experiment in (None, c.experiment))


def read_published(path: Path) -> Published:
    """Read the ledger of published numbers.

    Raises:
        UserError: the file is missing, no TOML, or a claim lacks a field.
    """
    try:
        tables = msgspec.toml.decode(path.read_bytes())
        papers = msgspec.convert(tables.get("paper", []), tuple[Paper, ...])
        claims = msgspec.convert(tables.get("claim", []), tuple[Claim, ...])
    except OSError as error:
        raise UserError(f"published claims '{path}' cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UserError(f"published claims '{path}' are damaged ({error}): restore the file") from error
    return Published(papers=papers, claims=claims)
