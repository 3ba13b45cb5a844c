"""Start one rank by this file's path: ``mpirun -n P python .../harness/transparent/start.py script.py``.

That is ``python -m harness.transparent`` where no package of the script's own may stand in the way.
"""

import importlib
import sys
from pathlib import Path


def main() -> None:
    """Be a rank or a witness, with the package around this file."""
    place = str(Path(__file__).resolve().parents[2])
    if sys.flags.safe_path:  # then Python has not put this folder there
        sys.path.insert(0, place)
    sys.path[0] = place
    importlib.import_module("harness.transparent.__main__").start()


if __name__ == "__main__":
    main()
