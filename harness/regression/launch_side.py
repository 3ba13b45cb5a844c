"""Launch one point of one side of a duet. It is run by its path, so that `harness` is the version on PYTHONPATH.

All that it needs of that version is `run_sweep`, `Sweep` and `decode`; a commit without them is told as such.
"""

import sys
from pathlib import Path


def main() -> int:
    """Run what the sweep file asks for: SWEEP_FILE RESULTS DATA_DIR (empty: none is given)."""
    from harness.base.errors import RunError, UserError
    from harness.schema.record import decode
    from harness.schema.sweep import Sweep
    from harness.sweep.execute import run_sweep

    sweep_file, results, data_dir = sys.argv[1:]
    try:
        sweep = decode(Path(sweep_file).read_bytes(), Sweep, Path(sweep_file))
        run_sweep(sweep, data_dir=Path(data_dir) if data_dir else None, results=Path(results), invalid_too=False)
    except (UserError, RunError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
