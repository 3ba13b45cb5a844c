"""Files from elsewhere that may be damaged or hostile: their faults as one error, their pickles without code."""

import contextlib
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.base.errors import UserError

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


# What a pickled numpy array needs; anything else in a downloaded pickle could run code.
_PICKLED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler that builds numpy arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PICKLED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)
