"""Where the data comes from that a workload will train on, decided before it is read, and the SHA-256 of its files."""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.base.current_user import expanded
from harness.base.errors import UserError
from harness.base.files import cache_folder, hold_lock_file, make_folder, sha256_of, write_atomic
from harness.base.record_words import shell_line
from harness.base.setting_names import setting
from harness.datasets import synthetic
from harness.datasets.csv_form import CsvSettings
from harness.datasets.dataset import Dataset, FoundFiles
from harness.datasets.image_files import open_index
from harness.datasets.known import dataset_info
from harness.datasets.own_file import FILE, TEXT_SUFFIXES, own_suffix
from harness.datasets.table_sources import PARQUET
from harness.schema.code_identity import script_id
from harness.schema.workload import IMAGENET, SCRIPT, Workload, image_size

# The SHA-256 of data files, kept in the cache while size and time stamp stay the same.


def file_sha256(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal, from the cache while its size and time stamp are the same.

    Raises:
        UserError: the file cannot be read, or the cache folder cannot be written.
    """
    with _readable(path):
        state = path.stat()
    name = str(path.resolve())
    file_state: dict[str, str | int] = {"path": name, "bytes": state.st_size, "mtime_ns": state.st_mtime_ns}
    cached = cache_folder() / "sha256" / hashlib.sha256(name.encode()).hexdigest()[:24]
    sha256 = _cached_hash(cached, file_state)
    if sha256 is not None:  # before any lock: a cache that somebody else prepared may be read-only
        return sha256
    make_folder(cached.parent)
    with hold_lock_file(cached.with_suffix(".lock")):  # ranks that start together: one reads, the others wait
        sha256 = _cached_hash(cached, file_state)
        if sha256 is None:
            with _readable(path):
                sha256 = sha256_of(path)
            write_atomic(cached, msgspec.json.encode({**file_state, "sha256": sha256}))
    return sha256


def _cached_hash(cached: Path, file_state: Mapping[str, str | int]) -> str | None:
    """Return the hash that is kept of a file in this state, None if there is none or the file has changed since."""
    try:
        content = msgspec.json.decode(cached.read_bytes(), type=dict[str, str | int])
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    sha256 = content.pop("sha256", None)
    return str(sha256) if sha256 and content == file_state else None


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"data file '{path}' cannot be read: {os.strerror(error.errno or 0).lower()}") from error


_OWN_READING = "3"
"""How a user's own file is read and which rows of it are held out: another number where the same file gives others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSource:
    """Where a workload's data comes from. `kind` is ``real``, ``synthetic`` or ``script``, which brings its own.

    `data_id` fingerprints it, whatever the number of samples. `rows` is the size of a stand-in's training part,
    0 for real data. `stored` says that rows stay in image files and are decoded while training. `image_size`
    (pixels a side) and `classes` are of ImageNet's images, else 0. `csv` is how the user wants a CSV file to be read.
    `note` is one sentence for the user, empty when there is nothing to say.
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
    csv: CsvSettings = dataclasses.field(default_factory=CsvSettings)
    note: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        """All source files, each once."""
        return tuple(dict.fromkeys((*self.train, *self.test)))


def locate(workload: Workload, data_dir: Path | None, data_id: str = "") -> DataSource:
    """Return the source of the workload's data: its real files, or the synthetic stand-in.

    `data_dir` is the folder of the original files, None for the default one. ``workload.data`` decides:
    ``real``, ``synthetic``, or ``auto`` (real where it is, else the stand-in). `data_id` is that of earlier
    launches, if they are to be repeated.

    Raises:
        UserError: `data_dir` does not exist, real data is asked for and absent, the data is not that of the earlier
            launches, or rank 0 is to send images in files.
    """
    source = _locate(workload, data_dir)
    if data_id not in ("", source.data_id):
        raise UserError(
            f"the launches are to train on {data_id}, the data here is {source.data_id}: name the folder of the same "
            f"originals with {setting('data_dir')}, or measure again if it was changed"
        )
    if source.stored and workload.distribution == "scatter":
        raise UserError(
            f"{setting('distribution', 'scatter')} sends rows held in memory, but images in files are decoded by every "
            f"rank: use {setting('distribution', 'parallel')}"
        )
    return source


def _locate(workload: Workload, data_dir: Path | None) -> DataSource:
    if workload.script:
        sha256 = script_id(workload.script.path)
        return DataSource(name=workload.dataset, kind=SCRIPT, data_id=SCRIPT, sha256=sha256, note="the script's own")
    dataset = dataset_info(workload.dataset)
    settings = csv_settings(workload)
    suffix = own_suffix(workload.own_file) if workload.own_file else ""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value and suffix not in (*TEXT_SUFFIXES, PARQUET):
            raise UserError(
                f"{setting(field.name, value)} is for a table of your own: leave it out, or give "
                f"{setting('data', 'file.csv')}"
            )
    if workload.dataset == FILE:
        if workload.data == "synthetic":
            raise UserError(
                f"{setting('data_kind', 'synthetic')} needs {setting('dataset')}: a file of your own has no "
                "synthetic stand-in"
            )
        if workload.own_file is None:
            raise UserError(f"{setting('dataset', 'file')} names no file: give it with {setting('data', 'FILE')}")
        own_files = (workload.own_file,)
        return _rows(workload, FoundFiles(train=own_files, test=own_files), "")
    folder = data_folder(data_dir)
    if workload.data == "synthetic":
        return stand_in_source(dataset, workload, "")
    files = dataset.find(folder)
    if workload.input == "resident":
        if workload.data == "real":
            raise UserError(
                f"input resident holds synthetic images: leave it out, or use {setting('data_kind', 'synthetic')}"
            )
        return stand_in_source(dataset, workload, f"{setting('input', 'resident')}: ")
    if files.missing:
        missing = ", ".join(files.missing)
        if workload.data == "real":
            fetch = ["harness", "data", "fetch", dataset.name, *(["--data-dir", data_dir] if data_dir else [])]
            raise UserError(
                f"no complete {dataset.title} files in '{folder}' (missing {missing}): "
                f"put them there or run `{shell_line(fetch)}`"
            )
        return stand_in_source(dataset, workload, f"no {dataset.title} files in {folder} (missing {missing}): ")
    note = ""
    if not files.test and dataset.separate_test:
        part = f"the last 1 in {dataset.held_out_one_in} training rows is held out for test"
        note = f"no {dataset.title} test files in {folder}: {part}"
    return (_images if workload.dataset == IMAGENET else _rows)(workload, files, note)


def data_folder(data_dir: Path | None) -> Path:
    """Return the folder of original files: `data_dir`, else $HARNESS_DATA_DIR, else ``data`` in the cache.

    Raises:
        UserError: a folder that was asked for does not exist.
    """
    named = os.environ.get("HARNESS_DATA_DIR")
    asked = data_dir or (expanded(named) if named else None)
    if asked is None:
        return cache_folder() / "data"
    if not asked.is_dir():
        raise UserError(f"data folder '{asked}' is not there: check {setting('data_dir')}")
    return asked


def _rows(workload: Workload, files: FoundFiles, note: str) -> DataSource:
    """Return the source of real rows: their id is of the files' contents and of the columns chosen."""
    hashes = [file_sha256(path) for path in files.train] + ["test"] + [file_sha256(path) for path in files.test]
    sha256 = hashlib.sha256(" ".join(hashes).encode()).hexdigest()
    settings = csv_settings(workload)
    data_id = f"{workload.dataset}-{sha256[:16]}"
    if workload.dataset == FILE:
        reading = "\n".join((_OWN_READING, *dataclasses.astuple(settings)))
        data_id += f"-{hashlib.sha256(reading.encode()).hexdigest()[:8]}"
    return DataSource(
        name=workload.dataset,
        kind="real",
        data_id=data_id,
        sha256=sha256,
        train=files.train,
        test=files.test,
        csv=settings,
        note=note,
    )


def csv_settings(workload: Workload) -> CsvSettings:
    """Return what the workload says of the user's own CSV file."""
    return CsvSettings(
        label=workload.label or "",
        drop=workload.drop or "",
        separator=workload.separator or "",
        decimal=workload.decimal or "",
        header=workload.header or "",
    )


def _images(workload: Workload, files: FoundFiles, note: str) -> DataSource:
    summary = open_index(files.train, files.test).summary
    if workload.classes not in (None, summary.classes):
        raise UserError(f"classes {workload.classes} is not the {summary.classes} of '{files.train[0]}': leave it out")
    return DataSource(
        name=workload.dataset,
        kind="real",
        data_id=f"{workload.dataset}-{summary.sha256[:16]}",
        sha256=summary.sha256,
        train=files.train,
        test=files.test,
        stored=True,
        image_size=image_size(workload.model, workload.image_size),
        classes=summary.classes,
        note="; ".join(filter(None, (note, summary.note))),
    )


def stand_in_source(dataset: Dataset, workload: Workload, reason: str) -> DataSource:
    """Return the synthetic stand-in of `dataset`; its note begins with the `reason` for it."""
    assert dataset.stand_in is not None
    data_id = f"synthetic-{dataset.name}-v{synthetic.VERSION}"
    rows = workload.samples or dataset.stand_in.rows
    size = 0
    classes = 0
    stored = False
    if dataset.name == IMAGENET:
        size = image_size(workload.model, workload.image_size)
        classes = workload.classes or dataset.classes
        stored = workload.input == "files"
        data_id += f"-jpeg-{synthetic.JPEG_VERSION}-{classes}" if stored else f"-{size}x{classes}"
    return DataSource(
        name=dataset.name,
        kind="synthetic",
        data_id=data_id,
        sha256=hashlib.sha256(data_id.encode()).hexdigest(),
        rows=rows,
        stored=stored,
        image_size=size,
        classes=classes,
        note=f"{reason}{rows:,} synthetic {'JPEG files' if stored else 'samples'} are used",
    )
