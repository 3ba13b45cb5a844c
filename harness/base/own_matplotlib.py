"""matplotlib for the harness's own figures: as it comes, whatever the user's settings are.

While it is imported, matplotlib reads ``matplotlibrc`` (from the current folder, $MATPLOTLIBRC, $MPLCONFIGDIR or the
home) and $MPLBACKEND. It fails where one of them is damaged. So all modules take it from here, where it is imported out
of their reach, and every figure is drawn by `own_settings`. The user's scripts and all other processes see their own
settings.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from harness.base.current_user import base_folder, can_be_written
from harness.base.files import cache_folder

__all__ = ["Artist", "Axes", "Figure", "FigureCanvasAgg", "own_settings", "ticker"]

_FONTS = "MPLCONFIGDIR"  # the folder in which matplotlib keeps its list of fonts, and looks for settings


@contextlib.contextmanager
def _out_of_reach() -> Iterator[None]:
    """Hide the user's settings of matplotlib during the block, and the current folder, where it looks first."""
    changes = {"MATPLOTLIBRC": os.devnull, "MPLBACKEND": ""}
    cache = base_folder("XDG_CACHE_HOME", ".cache")
    if _FONTS not in os.environ and not (cache and can_be_written(cache / "matplotlib")):
        changes[_FONTS] = str(cache_folder() / "matplotlib")
    before = {name: os.environ.get(name) for name in changes}
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.environ.update(changes)
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(here)
        os.close(here)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


with _out_of_reach():
    import matplotlib
    from matplotlib import ticker
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure


def own_settings(style: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Return a block in which matplotlib draws by its defaults and `style` alone."""
    settings: dict[Any, Any] = dict(matplotlib.rcParamsDefault)
    del settings["backend"]  # a canvas of its own has every figure
    settings.update(style)
    return matplotlib.rc_context(settings)
