"""``harness compare``: two or more measurements side by side."""

from pathlib import Path

import click

from harness.base.errors import UserError
from harness.cli.common import baselines_option, results_option


@click.command(name="compare")
@click.argument("sweep", nargs=-1, metavar="A B [C]...")
@click.option("--practical", type=click.FloatRange(0, 50), default=3.0, show_default=True, help="Difference, in %.")
@results_option
@baselines_option
def compare(sweep: tuple[str, ...], practical: float, results: Path, baselines: Path) -> None:
    """Compare B, C, ... with A: baselines, sweeps, launches, or commits of a sweep (SWEEP@COMMIT).

    They may differ in commit, machine, preset, sync policy or anything else that leaves the rows of an epoch
    the same; what differs is listed. A difference below --practical is none.
    """
    if len(sweep) < 2:
        raise UserError(f"compare needs two or more of sweep, baseline, SWEEP@COMMIT or launch, not {len(sweep)}")

    from harness.cli.select import find_measurement
    from harness.regression.check_wording import COMPARE_HEADINGS, comparison_cells, differences
    from harness.regression.compare import compare, sentence
    from harness.regression.formats import console, print_table
    from harness.regression.states import group_by_code
    from harness.regression.store import find_noises

    first, *others = (find_measurement(name, results=results, baselines=baselines) for name in sweep)
    to = console()
    for name, other in zip(sweep[1:], others, strict=True):
        kept = [noise.measurement for one in (first, other) for noise in find_noises(one, baselines)]
        found = compare(first, other, group_by_code(kept), practical=practical / 100)
        to.print(f"{name} against {sweep[0]}", style="bold", markup=False)
        for line in differences(first, other):
            to.print(f"  {line}", markup=False)
        print_table(to, COMPARE_HEADINGS, [comparison_cells(one) for one in found])
        to.print(sentence(name, sweep[0], found), markup=False)
        to.print()
