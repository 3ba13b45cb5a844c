"""Texts of records that become paths, words of commands or lines to paste: checked here, and nowhere else.

A record may be a stranger's. Its dataclasses check their texts as they are made: what is decoded has passed.
"""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """What a text may be: all that `pattern` matches, for readers in `words`."""

    pattern: re.Pattern[str]
    words: str

    def fits(self, text: str) -> bool:
        """Return whether `text` has the form."""
        return self.pattern.fullmatch(text) is not None


_CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
NAME = Form(
    pattern=re.compile(r"[A-Za-z0-9_][\w.-]{0,199}", re.ASCII),
    words="letters, digits, '_', '.' and '-', the first a letter, a digit or '_'",
)
"""A part of a path, of a job's name or of a git command: never empty, hidden, above a folder or an option."""
HOST = Form(pattern=re.compile(r"[\w.:][\w.:%@+-]{0,254}"), words="letters, digits and . : % @ + _ -")
"""A host as its kernel or a scheduler calls it."""
JOB = Form(pattern=re.compile(r"\w[\w.\[\]-]{0,254}", re.ASCII), words="letters, digits and . _ - [ ]")
"""A job's identifier, whatever the scheduler (`harness.sweep.schedulers.check_identifier` knows each)."""
TEXT = Form(pattern=re.compile(rf"[^{_CONTROL}]+"), words="one line of text, without control characters")
"""Words that are quoted where they are used."""
LINE = Form(pattern=re.compile(rf"(?!-)[^{_CONTROL}]+"), words="one line of text that does not begin with '-'")
"""A path, or what else stands as a word of its own in a command: never an option."""
VARIABLE = Form(
    # A file to read or write, a folder of components to load and a program to start are MCA parameters too.
    pattern=re.compile(
        r"HARNESS_REDUCTION|OMPI_MCA_(?!\w*(?:file|path|agent|command|prefix))"
        r"(?:allocator|bml|btl|coll|mpi|mpool|mtl|osc|pml|rcache|smsc|topo)(?:_[a-z0-9_]+)?",
        re.ASCII,
    ),
    words="HARNESS_REDUCTION, or OMPI_MCA_ and a parameter of how messages travel that is no file, path or program",
)
"""A setting of the communication: what `harness sweep --tuned` sets."""
VALUE = Form(pattern=re.compile(r"[\w.,:^+/*-]{0,200}", re.ASCII), words="letters, digits and . , : ^ + / * _ -")
"""The value of such a setting."""


def check_text(field: str, text: str, form: Form = NAME, *, optional: bool = False) -> None:
    """Check a text of a record; one that is `optional` may be empty.

    Raises:
        UserError: it has not the `form`.
    """
    if optional and not text:
        return
    if not form.fits(text):
        raise UserError(f"{field} {text[:80]!r} is not allowed: use {form.words}")


def below(parent: Path, name: str) -> Path:
    """Return ``PARENT/NAME``, of a name that may have several parts.

    Raises:
        UserError: it would not lie below `parent`.
    """
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise UserError(f"'{name}' names nothing below '{parent}': use a name without empty parts, '.' and '..'")
    return parent.joinpath(*parts)


def shell_line(words: Iterable[object]) -> str:
    """Return `words` as one line for a shell, each quoted where it must be."""
    return shlex.join(map(str, words))


def make_word(name: str, value: object) -> str:
    """Return ``NAME=value`` as a word of a make command for a shell: make takes a dollar from two."""
    return f"{name}={shlex.quote(str(value).replace('$', '$$'))}"


# Text of strangers (host names, reasons, notes, file names) without what steers a terminal or turns a line around.

# C0 but tab and newline, DEL, C1, marks and overrides of the direction of writing, separators of lines, and halves of
# characters, which cannot be written.
_PRINTABLE_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: object) -> str:
    """Return `text` with every control character but tab and newline as ``\\u001b``, which JSON too reads as that."""
    return _PRINTABLE_CONTROL.sub(lambda sign: f"\\u{ord(sign[0]):04x}", str(text).replace("\r\n", "\n"))


def printable_line(text: object, longest: int) -> str:
    """Return `text` as one line of at most `longest` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
