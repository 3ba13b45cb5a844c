"""Text of strangers (host names, reasons, notes, file names) without what steers a terminal or turns a line around."""

import re

# C0 but tab and newline, DEL, C1, marks and overrides of the direction of writing, separators of lines, and halves of
# characters, which cannot be written.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: object) -> str:
    """Return `text` with every control character but tab and newline as ``\\u001b``, which JSON too reads as that."""
    return _CONTROL.sub(lambda sign: f"\\u{ord(sign[0]):04x}", str(text).replace("\r\n", "\n"))


def printable_line(text: object, longest: int) -> str:
    """Return `text` as one line of at most `longest` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
