"""What a command found, built once as data: terminal, JSON, page, index and Markdown are renderings of it.

Nothing here draws or imports what draws: commands that only print stay quick.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from harness.base.record_words import printable

if TYPE_CHECKING:
    import pandas as pd

    from harness.report.svg import Picture


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One line of a list of facts; or a number of the first screen, with its doubt as `detail`.

    The name is a term of the glossary where it is one.
    """

    name: str
    value: str
    detail: str = ""


def facts(pairs: Sequence[tuple[str, object]]) -> tuple[Fact, ...]:
    """Return the pairs that have a value."""
    return tuple(Fact(name=name, value=str(value)) for name, value in pairs if value not in ("", None))


def distinct(values: Iterable[object], joint: str = ", ") -> str:
    """Return the different `values` as one text, in order of first appearance."""
    return joint.join(dict.fromkeys(str(value) for value in values))


@dataclass(frozen=True, kw_only=True, slots=True)
class Banner:
    """One statement that must not be missed. `kind` is ``data`` or ``warning``."""

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A cell with more than text: a `note` below it, the `value` it is sorted by, a `link`, a `tone`.

    `computed` sets predictions apart from measurements, `more` are (text, link) pairs that unfold, and `mark` is the
    row's place in the page.
    """

    text: str
    note: str = ""
    value: float | str | None = None
    link: str = ""
    tone: str = ""
    computed: bool = False
    more: Sequence[tuple[str, str]] = ()
    mark: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.note})" if self.note else self.text


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table. The first `left` columns are text, and the `texts` (by number, -1 is the last); all others are numbers.

    A line break in a heading breaks the line. `tones` colour cells by their text: ``good`` or ``bad``. A terminal
    leaves out the columns `wide`.
    """

    kind: ClassVar[str] = "table"
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    note: str = ""
    left: int = 1
    texts: Sequence[int] = (-1,)
    tones: Mapping[str, str] = field(default_factory=dict)
    wide: Sequence[int] = ()

    def __post_init__(self) -> None:
        if any(len(row) != len(self.headings) for row in self.rows):
            raise ValueError(f"table '{self.title}' has a row with more or fewer cells than headings")

    def is_text(self, column: int) -> bool:
        """Return whether `column` is set as text."""
        return column < self.left or column in self.texts or column - len(self.headings) in self.texts

    @staticmethod
    def mark(row: Sequence[str | Cell]) -> str:
        """Return the place of `row` in the page, an empty text where it has none."""
        return next((cell.mark for cell in row if isinstance(cell, Cell) and cell.mark), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class PageFigure:
    """One figure of a page with its caption. Beside the page lie NAME.pdf, NAME.svg, NAME.png and NAME.csv."""

    kind: ClassVar[str] = "figure"
    picture: "Picture"
    title: str
    caption: str
    table: "pd.DataFrame"

    @property
    def name(self) -> str:
        """The figure's name: of its files and of its place in the page."""
        return self.picture.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Prose:
    """A paragraph; a `note` is set small. `lead` stands before it in bold."""

    kind: ClassVar[str] = "prose"
    text: str
    note: bool = True
    lead: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Items:
    """A list of sentences; the (sentence, details) pairs have details that unfold."""

    kind: ClassVar[str] = "items"
    texts: Sequence[str | tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A box with a title and facts, or with text to copy. Cards that follow each other stand side by side."""

    kind: ClassVar[str] = "card"
    title: str
    facts: Sequence[Fact] = ()
    copy: str = ""


Element = Table | PageFigure | Prose | Items | Card


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of a page: `name` is its place in the page; a section of an empty `title` continues the one before."""

    title: str
    name: str
    elements: Sequence[Element]


class CaseOutcome(StrEnum):
    """What became of a test."""

    PASSED = "passed"
    FAILED = "failed"  # what was tested is not so, or a launch failed
    ERROR = "error"  # it could not be read
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseResult:
    """One test: `name` in a `group`, how long it took in seconds, and the `reason` for an outcome other than passed.

    `output` is what else was said.
    """

    group: str
    name: str
    outcome: CaseOutcome
    seconds: float = 0.0
    reason: str = ""
    output: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseSuite:
    """Tests together; `name` is that of the sweep or the check."""

    name: str = ""
    cases: Sequence[CaseResult] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command has found.

    `sentence` answers the `question`, with its interval; it is empty where the command has said all there is. The
    `details` are further sentences below it in smaller letters: what it rests on, and what else a reader must know.
    `table` is what a terminal shows of it, `data` what JSON has beside: numbers and any of the schema's dataclasses.
    `notes` say what the answer rests on. `command` gives the same again, with `remark` on what it needs;
    `studies` names those of the `files` that give it too.

    A page has `place`, its folder below that of reports, a `figure` on its first screen, and lists `tiles`, `facts`,
    `banners` and `sections`; `files` lie beside it. In the index it is a line: its `kind`, `title`, `when` the last
    launch that it shows ran, what commands call the sweep that it is of (`name`), the two `sides` that it compares,
    `machine` and `trained_on`. Files of its figures name the `command`. `page` is where it was written. `suite` has
    tests for JUnit's report.

    `problem` is what went wrong beside: exit code 1; else `code` is the exit code.
    """

    sentence: str
    details: Sequence[str] = ()
    question: str = ""
    table: Table | None = None
    data: Mapping[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()
    banners: Sequence[Banner] = ()
    figure: PageFigure | None = None
    tiles: Sequence[Fact] = ()
    facts: Sequence[Fact] = ()
    sections: Sequence[Section] = ()
    command: str = ""
    remark: str = ""
    studies: Sequence[str] = ()
    code: int = 0
    problem: str = ""
    kind: str = ""
    place: str = ""
    title: str = ""
    when: datetime | None = None
    name: str = ""
    machine: str = ""
    trained_on: str = ""
    sides: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    page: Path | None = None
    suite: CaseSuite = field(default_factory=CaseSuite)

    @property
    def figures(self) -> list[PageFigure]:
        """All figures of the page, in its order."""
        elements = (element for section in self.sections for element in section.elements)
        below = [element for element in elements if isinstance(element, PageFigure)]
        return [self.figure, *below] if self.figure else below


def plain(text: str) -> str:
    """Return `text` with ordinary blanks, for people search for them, and without what steers a terminal."""
    return printable(text).replace("\u00a0", " ")


def markdown(answer: Answer) -> str:
    """Return the answer for a pull request: its sentence, warnings, table, notes and command."""
    parts = [f"**{answer.sentence}**", *answer.details]
    parts += [f"> {banner.text}" for banner in answer.banners]
    if answer.table:
        rows = [answer.table.headings, ["---"] * len(answer.table.headings), *answer.table.rows]
        parts.append("\n".join(f"| {' | '.join(map(_one_line, row))} |" for row in rows))
        parts += [answer.table.note] if answer.table.note else []
    if answer.notes:
        parts.append("\n".join(f"- {note}" for note in answer.notes))
    parts += [f"`{answer.command}`"] if answer.command else []
    return plain("\n\n".join(parts)) + "\n"


def document(answer: Answer) -> str:
    """Return a page of tables and lists as Markdown; columns also line up as plain text."""
    parts = [f"# {answer.question}", answer.sentence, *answer.details]
    parts += [f"> {banner.text}" for banner in answer.banners]
    parts += ["\n".join(f"- {fact.name}: {fact.value}" for fact in answer.facts)] if answer.facts else []
    for section in answer.sections:
        parts += [f"## {section.title}"] if section.title and section.elements else []
        for element in section.elements:
            if isinstance(element, Table):
                rows = [list(map(_bold_if_bad, row)) for row in (element.headings, *element.rows)]
                widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
                headings, *lines = [_padded(row, widths) for row in rows]
                rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
                parts += ["\n".join([headings, rule, *lines]), *([element.note] if element.note else [])]
            elif isinstance(element, Items):
                parts.append("\n".join(f"- {text if isinstance(text, str) else text[0]}" for text in element.texts))
    parts += [f"`{answer.command}`"] if answer.command else []
    return plain("\n\n".join(parts)) + "\n"


def _padded(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return f"| {' | '.join(cells)} |"


def _bold_if_bad(cell: str | Cell) -> str:
    bold = "**" if isinstance(cell, Cell) and cell.tone == "bad" else ""
    return f"{bold}{_one_line(cell)}{bold}"


def _one_line(cell: object) -> str:
    """Return a cell as Markdown has it: on one line, without the sign between cells."""
    return " ".join(str(cell).split()).replace("|", "\\|")
