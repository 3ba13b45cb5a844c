"""Which files a call opens, and how often."""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_OPENED: list[Counter[Path]] = []  # of the calls that are watched now


def _count(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _OPENED and isinstance(arguments[0], (str, Path)):
        for opened in _OPENED:
            opened[Path(arguments[0])] += 1


sys.addaudithook(_count)  # there is no way to remove one


@contextlib.contextmanager
def opened_files() -> Iterator[Counter[Path]]:
    """Yield how often this process has opened each file since the block was entered."""
    opened: Counter[Path] = Counter()
    _OPENED.append(opened)
    try:
        yield opened
    finally:
        _OPENED.remove(opened)
