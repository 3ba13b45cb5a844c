"""What a script prints and which files it writes, in rank 0 and in the witness, and where the two differ.

Numbers reach a text by ways that nothing else sees, such as NumPy's functions of tensors. So texts are compared too, a
word with a word and a number with a number, and arrays of NumPy's files.
"""

import math
import os
import re
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.transparent.patch import is_own_code, put
from harness.transparent.witness.observation import measures

_SHARE = 1e-2  # of a number in a text, or of an array's length, by which it may differ
_LEAST = 1e-2  # size of a number that the share is of
_MOST_CHARACTERS = 65536  # of a text that are compared
_MOST_BYTES = 2**24  # of a file of arrays that is compared
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")  # of an object in memory
_PACKAGE = str(Path(__file__).parents[2])
_RENAMES = "/private_files/crossing_renames.py"  # replaces the renames of a process with a file tree of its own
_ARRAYS = (".npy", ".npz")
_FILE = "the file"
NAMES = "the names of written files"


class Written(NamedTuple):
    """What a script has written at one place: the `lines` of a text, or the `arrays` of a file of NumPy's.

    `goes_on`: the text may have more lines than these.
    """

    lines: tuple[str, ...] = ()
    arrays: Mapping[str, npt.NDArray[np.float64]] = {}
    goes_on: bool = False


class WrittenGap(NamedTuple):
    """Two processes have written something else: `source` says what, `values` are the two texts.

    `excess`: how far two numbers are apart, as a multiple of what is allowed; infinite where no numbers differ.
    """

    source: str
    excess: float
    values: tuple[str, str]


class WrittenOutputs:
    """Takes note of what the script's own lines print, and of the files that it opens to write.

    Prints and names of files count from the first step on (`go_on`), and nothing does between two trainings (`pause`).
    Lines of other packages that print are left out, as their clocks are not agreed on, and so are threads, whose order
    is not, temporary files, and what is written by compiled code.

    Files count in the working directory and the script's folder, or in `folders`: of these the witness has copies of
    its own, and elsewhere it may see what rank 0 has written. Hidden folders and Python's caches do not count, as a
    process writes there what it does not find.
    """

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = tuple(folders)
        self._process = os.getpid()
        self._is_begun = False
        self._is_noting = True
        self._names: set[str] = set()
        self._printed: dict[str, str] = {}
        self._begins: dict[str, int] = {}  # by file that was opened to write: where this process's own text begins
        self._changed: set[str] = set()  # files that may have changed since they were read
        self._temporary: list[str] = []

    def install(self) -> None:
        """Take note from now on; of files for as long as this process lives."""
        self._folders = self._folders or (Path.cwd(), Path(sys.argv[0]).absolute().parent)
        original = sys.stdout.write

        def write(text: str) -> int:
            self._note_print(text, sys._getframe(1))
            return original(text)

        put(sys.stdout, "write", write)
        sys.addaudithook(self._note_event)

    def go_on(self) -> None:
        """Take note of all: a step is made."""
        self._is_begun = True
        self._is_noting = True

    def pause(self) -> None:
        """Forget all, and take note of nothing."""
        self._is_noting = False
        self._names.clear()
        self._printed.clear()
        self._begins.clear()
        self._changed.clear()

    def _is_in_main_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread() and os.getpid() == self._process

    def _note_print(self, text: str, frame: Any) -> None:
        if self._is_begun and self._is_noting and self._is_in_main_thread() and is_own_code(frame.f_code.co_filename):
            source = f"what {Path(frame.f_code.co_filename).name}, line {frame.f_lineno} prints"
            self._printed[source] = self._printed.get(source, "") + text

    def _note_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hear from Python that a file is opened, renamed or temporary."""
        if not self._is_noting or not self._is_in_main_thread():
            return
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR) and _is_of_script(sys._getframe(1)):
                self._note_file(path, flags)
        elif event == "os.rename" and _is_of_script(sys._getframe(1)):
            self._note_rename(*arguments[:2])
        elif event in ("tempfile.mkstemp", "tempfile.mkdtemp"):
            self._temporary.append(str(arguments[0]))

    def _note_file(self, path: Any, flags: int) -> None:
        if not isinstance(path, (str, os.PathLike)):  # a descriptor
            return
        file = _absolute(path)
        if self._is_temporary(file) or not self._counts(file) or Path(file).is_dir():  # an anonymous file in it
            return
        if file not in self._begins or flags & os.O_TRUNC:
            self._begins[file] = _size(file) if flags & os.O_APPEND else 0
        self._note_written(file)

    def _note_written(self, file: str) -> None:
        self._changed.add(file)
        if self._is_begun:
            self._names.add(file)

    def _counts(self, file: str) -> bool:
        """Tell whether the witness has a copy of its own of a file's folder."""
        path = Path(file)
        for folder in self._folders:
            if path.is_relative_to(folder):
                parts = path.relative_to(folder).parts
                return not any(part.startswith(".") or part == "__pycache__" for part in parts)
        return False

    def _note_rename(self, source: Any, target: Any) -> None:
        """Take a file that is renamed for one that was written under its new name."""
        old = _absolute(source)
        new = _absolute(target)
        if (old in self._begins or self._is_temporary(old)) and self._counts(new):
            self._begins[new] = self._begins.pop(old, 0)
            self._changed.discard(old)
            self._names.discard(old)
            self._note_written(new)

    def _is_temporary(self, file: str) -> bool:
        return any(file.startswith(temporary) for temporary in self._temporary)

    def observe(self) -> dict[str, Written]:
        """Return what has been written since the last call, by its source, and the names of all files."""
        written = {source: Written(lines=_lines(text)) for source, text in self._printed.items()}
        self._printed.clear()
        if self._changed:
            open_files = _open_files()
            for file in sorted(self._changed):
                is_open = os.path.realpath(file) in open_files
                written[f"{_FILE} '{Path(file).name}'"] = _read(Path(file), self._begins[file], is_open)
                if not is_open:
                    self._changed.discard(file)
        if self._names:
            written[NAMES] = Written(lines=tuple(sorted(self._names)))
        return written


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - as it is, also where a link leads elsewhere


def _is_of_script(frame: Any) -> bool:
    """Tell whether the script, or a package that it calls, opens a file at `frame`, and not the harness."""
    is_innermost = True
    while frame is not None:
        file = frame.f_code.co_filename
        if is_own_code(file):
            return True
        renames = file.endswith(_RENAMES)
        if is_innermost and file.startswith(_PACKAGE) and not renames:
            return False
        is_innermost = is_innermost and (renames or "site-packages" not in file)
        frame = frame.f_back
    return False


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:  # it is new
        return 0


def _open_files() -> set[str]:
    """Return the paths of the files that this process has open."""
    paths = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            paths.add(str(Path(entry.path).readlink()))
        except OSError:  # the one that lists them
            continue
    return paths


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text[:_MOST_CHARACTERS].splitlines())


def _read(path: Path, begin: int, is_open: bool) -> Written:
    """Return what this process has written into a file, from byte `begin` on; nothing of one that is no text."""
    try:
        if not path.is_file():
            return Written()
        if path.suffix in _ARRAYS:
            is_read = not is_open and path.stat().st_size <= _MOST_BYTES
            return Written(arrays=dict(_arrays(path))) if is_read else Written()
        with path.open("rb") as file:
            file.seek(begin)
            content = file.read(_MOST_CHARACTERS + 1)
        goes_on = is_open or len(content) > _MOST_CHARACTERS
        text = content.decode()
    except (OSError, ValueError, zipfile.BadZipFile, EOFError):
        return Written()
    if "\0" in text:
        return Written()
    if goes_on:
        text = text[: text.rfind("\n") + 1]
    return Written(lines=_lines(text), goes_on=goes_on)


def _arrays(path: Path) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
    """Yield a name with type and shape for each array of numbers in a file of NumPy's, and its measures."""
    loaded = np.load(path, allow_pickle=False)
    members = {"": loaded} if isinstance(loaded, np.ndarray) else loaded
    for name, array in members.items():
        label = f"{name} {array.dtype} {list(array.shape)}".strip()
        yield label, measures(array) if np.issubdtype(array.dtype, np.number) else np.zeros(1)


def written_gaps(
    first: Mapping[str, Written], second: Mapping[str, Written], *, share: float = _SHARE
) -> list[WrittenGap]:
    """Return where two processes have written something else; numbers may differ by a `share`."""
    gaps = []
    for source in dict.fromkeys((*first, *second)):
        if source.startswith(_FILE) and (source not in first or source not in second):
            continue  # what its name tells is told by the names
        gap = _gap(source, first.get(source, Written()), second.get(source, Written()), share)
        if gap.excess > 1.0:
            gaps.append(gap)
    return gaps


def _gap(source: str, first: Written, second: Written, share: float) -> WrittenGap:
    """Return the greatest difference between what two processes have written at one place."""
    if source == NAMES and first.lines != second.lines:
        only = [sorted({*one.lines} - {*other.lines}) for one, other in ((first, second), (second, first))]
        return WrittenGap(source, math.inf, (_named(only[0]), _named(only[1])))
    if tuple(first.arrays) != tuple(second.arrays):
        return WrittenGap(source, math.inf, (", ".join(first.arrays), ", ".join(second.arrays)))
    goes_on = first.goes_on or second.goes_on
    if len(first.lines) != len(second.lines) and not goes_on:
        return WrittenGap(source, math.inf, (f"{len(first.lines)} lines", f"{len(second.lines)}"))
    worst = WrittenGap(source, 0.0, ("", ""))
    for ours, theirs in zip(first.lines, second.lines, strict=False):
        excess = _text_excess(ours, theirs, share)
        if excess > worst.excess:
            worst = WrittenGap(source, excess, (ours.strip()[:80], theirs.strip()[:80]))
    for name, measured in first.arrays.items():
        allowed = share * max(abs(measured[0]), abs(second.arrays[name][0]), _LEAST)
        excess = _excess(measured, second.arrays[name], allowed)
        if excess > worst.excess:
            values = (f"{name} of length {measured[0]:.6g}", f"{second.arrays[name][0]:.6g}")
            worst = WrittenGap(source, excess, values)
    return worst


def _named(files: list[str]) -> str:
    return ", ".join(Path(file).name for file in files) or "none more"


def _text_excess(first: str, second: str, share: float) -> float:
    """Return how far the numbers of two lines are apart, as a multiple of what is allowed; infinite for other words."""
    if first == second:
        return 0.0
    first = _ADDRESS.sub("", first)
    second = _ADDRESS.sub("", second)
    if _words(first) != _words(second):
        return math.inf
    texts = list(zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=True))
    if not texts:
        return 0.0
    numbers = np.array(texts, np.float64)
    digits = np.array([max(map(_last_digit, pair)) for pair in texts])
    return _excess(numbers[:, 0], numbers[:, 1], share * np.maximum(np.abs(numbers).max(1), _LEAST) + digits)


def _words(text: str) -> list[str]:
    """Return what stands between the numbers of a text, with plain blanks."""
    return [" ".join(part.split()) for part in _NUMBER.split(text)]


def _last_digit(number: str) -> float:
    """Return what one in the last digit of a written number is worth; 0 for one without a point."""
    mantissa, _, exponent = number.lower().partition("e")
    _, point, fraction = mantissa.partition(".")
    return float(10.0 ** (int(exponent or 0) - len(fraction))) if point else 0.0


@np.errstate(all="ignore")  # the script may have asked NumPy to raise
def _excess(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], allowed: Any) -> float:
    if np.array_equal(first, second, equal_nan=True):
        return 0.0
    return float(np.nan_to_num(np.abs(first - second) / allowed, nan=math.inf, posinf=math.inf).max())
