"""Start one rank by this file's path: ``mpirun -n P python .../harness/transparent/start.py script.py``.

That is ``python -m harness.transparent`` where no package of the script's own may stand in the way.
"""

import importlib
import os
import sys
from pathlib import Path

_APART = "HARNESS_APART"  # set where the script has a package called `harness`


def _script_folder() -> Path:
    words = [word for word in sys.argv[1:] if word.endswith(".py")]
    return Path(words[0]).resolve().parent if words else Path.cwd()


def main() -> None:
    """Import the harness from around this file, under its own name or a private one, and be a rank or a witness."""
    package = Path(__file__).resolve().parents[1]
    if sys.flags.safe_path:  # then Python has not put this folder there
        sys.path.insert(0, "")
    sys.path[0] = str(package.parent)
    names = importlib.import_module(f"{package.name}.transparent.module_precedence")
    name = package.name
    if os.environ.get(_APART) or names.has_own(_script_folder()):
        os.environ[_APART] = "1"
        sys.meta_path.insert(0, names.PrivateFinder())
        for full in [full for full in sys.modules if full.partition(".")[0] == name]:
            del sys.modules[full]
        name = names.PRIVATE
    importlib.import_module(f"{name}.transparent.__main__").start()


if __name__ == "__main__":
    main()
