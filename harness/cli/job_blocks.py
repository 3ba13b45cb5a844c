"""The program of a batch job in turns, ``python -m harness.cli.job_blocks SERIES NODE SECONDS``: until it knows enough.

The job has run for these seconds before.
"""

import sys
from pathlib import Path

from harness.cli.sweep_end import EndRule, measure_width
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.block_program import Enough, main
from harness.sweep.submission_settings import read_submission


def until_known() -> Enough:
    """Return what is asked after each repeat of a series: whether no further one is wanted of the sweep in a folder.

    The time limit of its job ends it in any case.
    """
    wanted = 0

    def is_known(folder: Path) -> bool:
        nonlocal wanted
        width = measure_width(folder)
        if width.repeats < wanted:
            return False
        rule = EndRule(width=read_submission(SweepFolder(folder)).width)
        wanted = rule.next_repeats(width.reach, width.repeats)
        return wanted <= width.repeats

    return is_known


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], until_known(), float(sys.argv[3])))
