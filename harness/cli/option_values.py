"""Values of options as users write them: lists of counts (``1..8``), words quoted as in a shell, and no secrets."""

import re
import shlex

from harness.base.errors import UserError

_FORMS = "write 1..8 (every count), 1..64*2 (doublings) or 1,2,4 (a list)"
_LIMIT = 1_000_000
MOST_COUNTS = 1_000
"""Counts in one list: many more than anyone plots, and few enough that every combination can be tried."""


def parse_counts(field: str, text: str) -> tuple[int, ...]:
    """Parse `text` into ascending counts without repeats.

    ``1..8`` is 1 2 3 4 5 6 7 8; ``1..64*2`` is 1 2 4 8 16 32 64; parts may be joined by commas.

    Raises:
        UserError: the text is not such a list, a count is below 1, or a range runs backwards.
    """
    counts: set[int] = set()
    for part in text.split(","):
        counts.update(_parse_part(field, text, part.strip()))
    return tuple(sorted(counts))


def _parse_part(field: str, text: str, part: str) -> list[int]:
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+)(?:\*(\d+))?)?", part, flags=re.ASCII)
    if not match:
        raise UserError(f"{field}={text} is not a list of counts: {_FORMS}")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    factor = int(match[3]) if match[3] else None
    if first < 1:
        raise UserError(f"{field}={text} has a count below 1: start at 1")
    if last > _LIMIT:
        raise UserError(f"{field}={text} has a count above {_LIMIT:,}: write a smaller one")
    if last < first:
        raise UserError(f"{field}={text} runs backwards: write {last}..{first}")
    if factor is None:
        if last - first >= MOST_COUNTS:
            raise UserError(f"{field}={text} is {last - first + 1:,} counts: {first}..{last}*2 is the doublings")
        return list(range(first, last + 1))
    if factor < 2:
        raise UserError(f"{field}={text} never grows: the factor after * must be at least 2")
    counts = [first]
    while counts[-1] * factor <= last:
        counts.append(counts[-1] * factor)
    return counts


# Words of a setting's value, quoted as in a shell.


def split_words(name: str, text: str) -> list[str]:
    """Return the words of `text`, quoted as in a shell; `name` is the setting's.

    Raises:
        UserError: a quotation is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{name}={text} cannot be split into words ({error}): quote it as in a shell") from error
