"""What launches and their launchers print: the last of it, and the line that says what went wrong."""

import re
from pathlib import Path

_READ_BYTES = 1_000_000
_OURS = re.compile(r"harness: (?P<reason>.+)")
_EXCEPTION = re.compile(r"(?P<reason>(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)")
_LIBRARY_LOG = re.compile(r"[IWE]\d{4,} |WARNING: ")  # TensorFlow's own remarks, which a good run makes as well
_SIGNAL = re.compile(r"\[[^\]]+\] Signal: (?P<reason>.+)")  # Open MPI's own handler, above a stack
_CALL = re.compile(r"\(P(?P<call>MPI_\w+)\+")
_OTHER = re.compile(r"(?P<reason>.*\b(?:error|fail\w*|killed|cannot|unable|no such|not found)\b.*)", re.IGNORECASE)


def read_output(log: Path) -> str:
    """Return the last megabyte of a log; launchers write NUL bytes and cut characters into it."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _READ_BYTES))
            content = file.read()
    except OSError:
        return ""
    return content.replace(b"\0", b"").decode(errors="replace")


def first_error(output: str) -> str | None:
    """Return the first error line: the harness's own sentence, else an exception's, else what looks like one.

    Of a crash inside of MPI it names the call too.
    """
    lines = [line.strip() for line in output.splitlines() if not _LIBRARY_LOG.match(line)]
    for pattern in (_OURS, _EXCEPTION, _SIGNAL, _OTHER):
        for line in lines:
            match = pattern.match(line)
            if match:
                call = _CALL.search(output) if pattern is _SIGNAL else None
                return match["reason"] + (f" in {call['call']}" if call else "")
    return None
