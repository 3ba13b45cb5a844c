"""Numbers from binary files: IDX and CIFAR's batches read whole; .npz, HDF5 and NetCDF opened and read by slices."""

import contextlib
import gzip
import io
import lzma
import math
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.datasets.dataset import Array, Block

# All that damaged bytes have been seen to raise in the libraries that read them.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    pickle.UnpicklingError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ImportError,
    RuntimeError,
    OverflowError,
    MemoryError,
)


@contextlib.contextmanager
def readable(name: str | Path, kind: str, fix: str = "write it again") -> Iterator[None]:
    """Turn what damaged bytes raise inside into a UserError: the file `name` is not a readable file of this `kind`."""
    try:
        yield
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"'{name}' is not a readable {kind} ({reason}): {fix}") from error


def read_idx(path: Path, dims: int) -> npt.NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes with `dims` dimensions, gzip-compressed or not.

    Raises:
        UserError: the file is damaged, of another kind, or shorter or longer than its header says.
    """
    with readable(path, "gzip file", "fetch it again"):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    magic = 0x08 << 8 | dims  # unsigned bytes
    header = 4 + 4 * dims
    if len(content) < header:
        raise UserError(f"'{path}' is cut: {len(content)} bytes are less than an IDX header; fetch it again")
    found = int.from_bytes(content[:4], "big")
    if found != magic:
        raise UserError(f"'{path}' starts with 0x{found:08x}, not the IDX magic number 0x{magic:08x}: fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", count=dims, offset=4))
    expected = header + math.prod(shape)
    if len(content) != expected:
        state = "cut" if len(content) < expected else "too long"
        raise UserError(
            f"'{path}' is {state}: its header promises {expected:,} bytes, it has {len(content):,}; fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_idx_pair(paths: tuple[Path, ...], part: str, *, shape: tuple[int, int], classes: int) -> Iterator[Block]:
    """Yield one block, uint8 [rows, *shape, 1] and labels, from an images and a labels file.

    Raises:
        UserError: a file is damaged, the two differ in count, or an image or a label is out of range.
    """
    if not paths:
        return
    image_path, label_path = paths
    images, labels = read_idx(image_path, dims=3), read_idx(label_path, dims=1)
    if images.shape[1:] != shape:
        raise UserError(f"'{image_path}' has images of shape {images.shape[1:]}, not {shape}: fetch it again")
    if len(images) != len(labels):
        raise UserError(
            f"'{image_path}' has {len(images):,} images but '{label_path}' {len(labels):,} labels: fetch both again"
        )
    yield images[..., np.newaxis], _checked_labels(str(label_path), labels, classes)


def _checked_labels(name: str, labels: Array, classes: int) -> Array:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise UserError(f"'{name}' row {wrong[0] + 1:,} has label {labels[wrong[0]]}: labels are 0 to {classes - 1}")
    return labels


_CIFAR_PIXELS = 32 * 32 * 3


def read_cifar(
    paths: tuple[Path, ...],
    part: str,
    *,
    members: Mapping[str, tuple[str, ...]],
    classes: int,
    label_bytes: int = 1,
    key: bytes = b"labels",
) -> Iterator[Block]:
    """Yield the batches of CIFAR's binary or Python files: uint8 [rows, 32, 32, 3] and labels 0 to `classes` - 1.

    A path is one batch, or a tar archive of which the `members` of the part are read. The label is the last of
    `label_bytes` bytes before a row's pixels, or in the pickled list called `key`.

    Raises:
        UserError: a batch is cut or damaged, not in the archive, or has a label out of range.
    """
    for path in paths:
        python = "python" in path.name or path.suffix == ""
        for name, content in _batches(path, [member if python else f"{member}.bin" for member in members[part]]):
            if python:
                with readable(name, "CIFAR Python batch", "fetch it again"):
                    batch: dict[bytes, Any] = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
                    pixels, labels = np.asarray(batch[b"data"], np.uint8), np.asarray(batch[key])
                if pixels.ndim != 2 or pixels.shape[1] != _CIFAR_PIXELS or len(pixels) != len(labels):
                    raise UserError(f"'{name}' has images {pixels.shape} and {len(labels):,} labels: fetch it again")
            else:
                size = label_bytes + _CIFAR_PIXELS
                if not content or len(content) % size:
                    rows = f"{len(content):,} bytes are not whole rows of {size:,}"
                    raise UserError(f"'{name}' is cut: {rows}; fetch it again")
                table = np.frombuffer(content, np.uint8).reshape(-1, size)
                pixels, labels = table[:, label_bytes:], table[:, label_bytes - 1]
            images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            yield images, _checked_labels(name, labels, classes)


def _batches(path: Path, members: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield a name for messages and the content of the file, or of each of the archive's `members`."""
    if not path.name.endswith(".tar.gz"):
        yield str(path), path.read_bytes()
        return
    found = dict.fromkeys(members, b"")
    with readable(path, "archive", "fetch it again"), tarfile.open(path, "r|gz") as archive:
        for member in archive:  # one pass: a gzip file cannot be searched
            name = Path(member.name).name
            file = archive.extractfile(member) if name in found else None
            if file is not None:
                found[name] = file.read()
    yield from ((f"{path}/{name}", content) for name, content in found.items())


# What a pickled numpy array needs; anything else in a downloaded pickle could run code.
_PICKLED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that builds numpy arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PICKLED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


class Slices(Protocol):
    """An array of at least one dimension whose rows are read when they are asked for."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, rows: slice) -> Array: ...


Arrays = Mapping[str, Slices]

_NAMES = {
    "training": (
        ("x_train", "y_train"),
        ("training_data", "training_labels"),
        ("x", "y"),
        ("data", "labels"),
        ("data", "label"),
        ("images", "labels"),
    ),
    "validation": (("x_valid", "y_valid"), ("x_val", "y_val"), ("validation_data", "validation_labels")),
    "testing": (("x_test", "y_test"), ("testing_data", "testing_labels")),
}


def is_rows(array: Slices) -> bool:
    """Return whether `array` is [rows, *features] of numbers, with features."""
    return len(array.shape) > 1 and 0 not in array.shape[1:] and array.dtype.kind in "buif"


def named_pair(path: Path, arrays: Arrays, part: str, *, required: bool = False) -> tuple[str, str] | None:
    """Return the names of the features and labels of part ``training``, ``validation`` or ``testing``.

    Raises:
        UserError: the features are not rows of numbers, not as many as the labels, or not there but required.
    """
    names = next((pair for pair in _NAMES[part] if set(pair) <= set(arrays)), None)
    if names is not None:
        x, y = arrays[names[0]], arrays[names[1]]
        if not is_rows(x) or x.shape[0] != y.shape[0]:
            raise UserError(
                f"'{path}' {names[0]} has shape {tuple(x.shape)}, {x.dtype}, and {names[1]} has shape "
                f"{tuple(y.shape)}: give as many rows of numbers as labels"
            )
    elif required:
        shown = ", ".join(arrays) or "none"
        raise UserError(f"'{path}' has arrays {shown}: name features and labels x_train, y_train or x, y")
    return names


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Arrays]:
    """Yield the arrays of an .npz file; raise a UserError if it is damaged, or has one of other objects than texts."""
    with readable(path, ".npz file"), zipfile.ZipFile(path) as archive, contextlib.ExitStack() as stack:
        yield {name.removesuffix(".npy"): _Member(name, archive, stack) for name in archive.namelist()}


class _Member:
    """One array of an .npz file, which stays open: rows in ascending order are decompressed once.

    An array in column order is read as a whole when its first rows are asked for; one of Python's texts or numbers as
    objects at once.
    """

    def __init__(self, name: str, archive: zipfile.ZipFile, stack: contextlib.ExitStack) -> None:
        self._file = stack.enter_context(archive.open(name))
        version = np.lib.format.read_magic(self._file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, self._by_columns, self.dtype = read(self._file)
        self._begin = self._file.tell()
        self._whole: Array | None = None
        if self.dtype.hasobject:
            self._whole = _plain_array(name, _ArrayUnpickler(self._file).load())
            self.shape, self.dtype = self._whole.shape, self._whole.dtype

    def __getitem__(self, rows: slice) -> Array:
        if self._whole is None and self._by_columns and len(self.shape) > 1:
            self._whole = self._read(0, self.shape[0]).reshape(self.shape[::-1]).T
        if self._whole is not None:
            return self._whole[rows]
        begin, end, _ = rows.indices(self.shape[0])
        return self._read(begin, end).reshape(end - begin, *self.shape[1:])

    def _read(self, begin: int, end: int) -> Array:
        """Return the values of rows `begin` to `end` of an array in row order, of all rows of another."""
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        self._file.seek(self._begin + begin * size)
        return np.frombuffer(self._file.read((end - begin) * size), self.dtype)


def _plain_array(name: str, objects: Any) -> Array:
    """Return an array of objects, as pandas has its texts, as one of texts or numbers; raise a ValueError of others."""
    values = objects.ravel().tolist() if isinstance(objects, np.ndarray) else [None]
    if not all(isinstance(value, str) for value in values) and not all(isinstance(value, int) for value in values):
        raise ValueError(f"array {name} is of objects that are not all texts or all whole numbers")
    return np.array(values).reshape(objects.shape)


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Arrays]:
    """Yield the data sets at the top of an HDF5 file that have rows.

    Raises:
        UserError: the file is damaged, or a link leads to another file or to nothing.
    """
    import h5py

    with readable(path, "HDF5 file"), h5py.File(path, "r") as file:
        arrays = {}
        for name in file:
            item = None if isinstance(file.get(name, getlink=True), h5py.ExternalLink) else file.get(name)
            if item is None or getattr(item, "is_virtual", False) or getattr(item, "external", None):
                raise UserError(f"'{path}' {name} is a link to another file or to nothing: copy its rows into the file")
            if isinstance(item, h5py.Dataset) and item.shape:
                arrays[name] = item
        yield arrays


@contextlib.contextmanager
def open_netcdf(path: Path) -> Iterator[Arrays]:
    """Yield the arrays of a NetCDF file (classic, 64-bit, CDF-5 and NetCDF-4).

    Two variables over the same first dimension, the labels one integer a row, are called x and y; bytes are
    unsigned, as in the field's PNetCDF files.

    Raises:
        UserError: the file is damaged.
    """
    import netCDF4

    with readable(path, "NetCDF file"), netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        arrays = {name: _Variable(variable) for name, variable in file.variables.items() if variable.ndim}
        whole = [name for name, one in arrays.items() if one.dtype.kind in "iu" and math.prod(one.shape[1:]) == 1]
        if len(arrays) == 2 and len(whole) == 1 and len({array.shape[0] for array in arrays.values()}) == 1:
            arrays = {"y" if name == whole[0] else "x": array for name, array in arrays.items()}
        yield arrays


class _Variable:
    """A NetCDF variable whose bytes are unsigned."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        self.shape = variable.shape
        self.dtype = np.dtype(np.uint8) if variable.dtype == np.int8 else np.dtype(variable.dtype)

    def __getitem__(self, rows: slice) -> Array:
        values = np.asarray(self._variable[rows])
        return values.view(np.uint8) if values.dtype == np.int8 else values
