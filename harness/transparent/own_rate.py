"""What a script prints of its own speed, read by a regular expression of the user's."""

import re
import sys
from typing import Any, TextIO


class OwnRate:
    """The last number that `pattern`, an expression with one group, has found in the lines of standard output."""

    def __init__(self, pattern: str) -> None:
        self.value: float | None = None
        self._pattern = re.compile(pattern)
        self._open = ""

    def install(self) -> None:
        """Read what Python prints from now on; it is printed as before."""
        sys.stdout = _ReadOutput(sys.stdout, self)

    def read(self, text: str) -> None:
        """Look for the number in the lines that `text` ends, with what came before it."""
        *lines, self._open = (self._open + text).split("\n")
        for line in lines:
            match = self._pattern.search(line)
            if match is None:
                continue
            try:
                self.value = float(match[1].replace(",", ""))
            except ValueError:
                continue  # a group that takes words as well


class _ReadOutput:
    """Standard output, whose lines `rate` reads."""

    def __init__(self, output: TextIO, rate: OwnRate) -> None:
        self._output = output
        self._rate = rate

    def write(self, text: str) -> int:
        """Print `text`."""
        self._rate.read(text)
        return self._output.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)
