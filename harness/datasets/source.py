"""Source: the data a workload will train on, decided before anything is read, and the SHA-256 of its files."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from harness.base.errors import UserError
from harness.base.files import cache_folder, locked, make_folder, write_atomic
from harness.datasets import synthetic
from harness.datasets.dataset import Dataset, FoundFiles
from harness.datasets.images import write
from harness.datasets.images.index import open_index
from harness.datasets.registry import FILE, dataset
from harness.datasets.userfile import CSV
from harness.schema.identity import script_id
from harness.schema.workload import DATASET, IMAGENET, Workload, image_size, is_script, script_command


@dataclass(frozen=True, kw_only=True, slots=True)
class _Memo:
    path: str
    bytes: int
    mtime_ns: int
    sha256: str


def file_sha256(path: Path, cache: Path | None = None) -> str:
    """Return the file's SHA-256 in hexadecimal, from the cache while its size and time stamp are the same.

    Raises:
        UserError: the file cannot be read, or the cache folder cannot be written.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise UserError(f"data file '{path}' cannot be read: {os.strerror(error.errno or 0).lower()}") from error
    place = str(path.resolve())
    memo_file = (cache or cache_folder()) / "sha256" / hashlib.sha256(place.encode()).hexdigest()[:24]
    memo = _read(memo_file, place, state)
    if memo is not None:  # before any lock: a cache that somebody else prepared may be read-only
        return memo.sha256
    make_folder(memo_file.parent)
    with locked(memo_file.with_suffix(".lock")):  # ranks that start together: one reads, the others wait
        memo = _read(memo_file, place, state)
        if memo is None:
            memo = _Memo(path=place, bytes=state.st_size, mtime_ns=state.st_mtime_ns, sha256=_hash(path))
            write_atomic(memo_file, msgspec.json.encode(memo))
    return memo.sha256


def _read(memo_file: Path, place: str, state: os.stat_result) -> _Memo | None:
    """Return what is remembered of the file, None if that is nothing or the file has changed since."""
    try:
        memo = msgspec.json.decode(memo_file.read_bytes(), type=_Memo)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    same = (memo.path, memo.bytes, memo.mtime_ns) == (place, state.st_size, state.st_mtime_ns)
    return memo if same else None


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"data file '{path}' cannot be read: {os.strerror(error.errno or 0).lower()}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSource:
    """Where a workload's data comes from. `kind` is ``real``, ``synthetic`` or ``script``, which brings its own.

    `data_id` fingerprints it, whatever the number of samples. `rows` is the size of a twin's training part,
    0 for real data. `stored` says that rows stay in image files and are decoded while training. `image_size`
    (pixels a side) and `classes` are of ImageNet's images, else 0. `label` and `drop` are as in `Workload`. `note` is
    one sentence for the user, empty when there is nothing to say.
    """

    name: str
    kind: str
    data_id: str
    sha256: str
    train: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    rows: int = 0
    stored: bool = False
    image_size: int = 0
    classes: int = 0
    label: str = ""
    drop: str = ""
    note: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        """All source files, each once."""
        return tuple(dict.fromkeys((*self.train, *self.test)))


def locate(workload: Workload, data_dir: Path | None, data_id: str = "") -> DataSource:
    """Return the source of the workload's data: its real files, or the synthetic twin.

    `data_dir` is the folder of the original files, None for the default one. ``workload.data`` decides:
    ``real``, ``synthetic``, or ``auto`` (real where it is, else the twin). `data_id` is that of earlier launches, if
    they are to be repeated.

    Raises:
        UserError: `data_dir` does not exist, real data is asked for and absent, the data is not that of the earlier
            launches, or rank 0 is to send images in files.
    """
    source = _locate(workload, data_dir)
    if data_id not in ("", source.data_id):
        raise UserError(
            f"the launches are to train on {data_id}, the data here is {source.data_id}: name the folder of the same "
            "originals with --data-dir (DATA_DIR=), or measure anew if it was changed"
        )
    if source.stored and workload.distribution == "scatter":
        raise UserError(
            "DISTRIBUTION=scatter sends rows held in memory, but images in files are decoded by every rank: "
            "use DISTRIBUTION=parallel"
        )
    return source


def _locate(workload: Workload, data_dir: Path | None) -> DataSource:
    if is_script(workload):
        sha256 = script_id(script_command(workload)[0])
        return DataSource(name=workload.dataset, kind="script", data_id=DATASET, sha256=sha256, note="the script's own")
    entry = dataset(workload.dataset)
    for name, value in (("LABEL", workload.label), ("DROP", workload.drop)):
        if value and Path(workload.data_file or "").suffix.lower() != CSV:
            raise UserError(f"{name}={value} is for a .csv file of your own: leave it out, or give DATA=file.csv")
    if workload.dataset == FILE:
        return _own_file(workload)
    folder = data_folder(data_dir)
    if workload.data == "synthetic":
        return _twin(entry, workload, "")
    found = entry.find(folder)
    if workload.input == "resident":
        if workload.data == "real":
            raise UserError("input resident holds synthetic images: leave it out, or use DATA_KIND=synthetic")
        return _twin(entry, workload, "INPUT=resident: ")
    if not found.missing and workload.dataset == IMAGENET:
        return _images(entry, workload, found, _held_out_note(entry, found, folder))
    if not found.missing:
        return _real(entry.info.name, found, _held_out_note(entry, found, folder))
    missing = ", ".join(found.missing)
    if workload.data == "real":
        where = f" --data-dir {data_dir}" if data_dir else ""
        raise UserError(
            f"no complete {entry.info.title} files in '{folder}' (missing {missing}): "
            f"put them there or run `harness data fetch {entry.info.name}{where}`"
        )
    return _twin(entry, workload, f"no {entry.info.title} files in {folder} (missing {missing}): ")


def data_folder(data_dir: Path | None) -> Path:
    """Return the folder of original files: `data_dir`, else $HARNESS_DATA_DIR, else ``data`` in the cache.

    Raises:
        UserError: a folder that was asked for does not exist.
    """
    asked = data_dir or (Path(os.environ["HARNESS_DATA_DIR"]) if os.environ.get("HARNESS_DATA_DIR") else None)
    if asked is None:
        return cache_folder() / "data"
    if not asked.is_dir():
        raise UserError(f"data folder '{asked}' is not there: check --data-dir")
    return asked


def _own_file(workload: Workload) -> DataSource:
    if workload.data == "synthetic":
        raise UserError("--data-kind synthetic needs a DATASET: a file of your own has no synthetic twin")
    if workload.data_file is None:
        raise UserError("DATASET=file names no file: give it with --data FILE")
    path = Path(workload.data_file)
    source = _real(FILE, FoundFiles(train=(path,), test=(path,)), "")
    label, drop = workload.label or "", workload.drop or ""
    if not (label or drop):
        return source
    chosen = hashlib.sha256(f"{label}\n{drop}".encode()).hexdigest()[:8]
    return replace(source, label=label, drop=drop, data_id=f"{source.data_id}-{chosen}")


def _real(name: str, found: FoundFiles, note: str) -> DataSource:
    hashes = [file_sha256(path) for path in found.train] + ["test"] + [file_sha256(path) for path in found.test]
    sha256 = hashlib.sha256(" ".join(hashes).encode()).hexdigest()
    return DataSource(
        name=name,
        kind="real",
        data_id=f"{name}-{sha256[:16]}",
        sha256=sha256,
        train=found.train,
        test=found.test,
        note=note,
    )


def _images(entry: Dataset, workload: Workload, found: FoundFiles, note: str) -> DataSource:
    summary = open_index(found.train, found.test).summary
    if workload.classes not in (None, summary.classes):
        raise UserError(f"classes {workload.classes} is not the {summary.classes} of '{found.train[0]}': leave it out")
    return DataSource(
        name=entry.info.name,
        kind="real",
        data_id=f"{entry.info.name}-{summary.sha256[:16]}",
        sha256=summary.sha256,
        train=found.train,
        test=found.test,
        stored=True,
        image_size=image_size(workload.model, workload.image_size),
        classes=summary.classes,
        note="; ".join(filter(None, (note, summary.note))),
    )


_MANY = 1_000_000  # rows, of which the part that is held out is told


def _held_out_note(entry: Dataset, found: FoundFiles, folder: Path) -> str:
    info = entry.info
    if found.test or not info.separate_test:
        return ""
    part = round(_MANY / entry.hold_out(_MANY))
    return f"no {info.title} test files in {folder}: one in {part} training rows, the last, is held out for test"


def _twin(entry: Dataset, workload: Workload, reason: str) -> DataSource:
    info = entry.info
    data_id = f"synthetic-{info.name}-v{synthetic.VERSION}"
    rows = workload.samples or info.twin_rows
    size, classes, stored = 0, 0, False
    if info.name == IMAGENET:
        size, classes = image_size(workload.model, workload.image_size), workload.classes or info.classes
        stored = workload.input == "files"
        data_id += f"-jpeg-{write.VERSION}-{classes}" if stored else f"-{size}x{classes}"
    return DataSource(
        name=info.name,
        kind="synthetic",
        data_id=data_id,
        sha256=hashlib.sha256(data_id.encode()).hexdigest(),
        rows=rows,
        stored=stored,
        image_size=size,
        classes=classes,
        note=f"{reason}a synthetic twin of {rows:,} {'JPEG files' if stored else 'rows'} stands in",
    )
