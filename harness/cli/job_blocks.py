"""The program of a batch job in turns, ``python -m harness.cli.job_blocks SERIES NODE``: until it knows enough."""

import sys
from pathlib import Path

from harness.cli.command_sweep import next_repeats, widest_interval
from harness.sweep.block_program import main


def is_known_well_enough(folder: Path) -> bool:
    """Return whether no further block is wanted of the sweep in `folder`; its job's time limit ends it in any case."""
    reach, blocks = widest_interval(folder)
    return next_repeats(reach, blocks, seconds=0.0) <= blocks


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], is_known_well_enough))
