"""The program of a batch job in turns, ``python -m harness.cli.job_blocks SERIES NODE SECONDS``: until it knows enough.

The job has run for these seconds before.
"""

import sys
from pathlib import Path

from harness.cli.command_sweep import next_repeats, widest_interval
from harness.sweep.block_program import Enough, main


def until_known() -> Enough:
    """Return what is asked after each repeat of a series: whether no further one is wanted of the sweep in a folder.

    The time limit of its job ends it in any case.
    """
    wanted = 0

    def is_known(folder: Path) -> bool:
        nonlocal wanted
        reach, repeats = widest_interval(folder)
        if repeats < wanted:
            return False
        wanted = next_repeats(reach, repeats, seconds=0.0)
        return wanted <= repeats

    return is_known


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], until_known(), float(sys.argv[3])))
