"""A window of sittings as the reference of the newest one: a workload watched over days, without a baseline."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from harness.analysis.stats import sittings
from harness.base.errors import UserError
from harness.regression.states import group_by_code, join
from harness.schema.measurement import Measurement


def last_sittings(found: Sequence[Measurement], size: int) -> tuple[Measurement, Measurement]:
    """Return the `size` sittings before the last one, joined, and the last one, of all measurements of one study.

    What lies between the window's sittings, changes of the code among it, is then what the check takes for noise: one
    sitting stands out from days that differ as these do.

    Raises:
        UserError: there are fewer than 3 sittings: of two nobody knows what days differ by.
    """
    whole = reduce(join, group_by_code(found))
    numbers = sittings([(launch.started, launch.ended) for launch in whole.launches])
    last = max(numbers)
    if last < 2:
        raise UserError(
            f"--window needs 3 sittings of {whole.workload.name}, an hour apart or more, and there "
            f"{'is' if last == 0 else 'are'} {last + 1}: sweep again on other days, or give --against"
        )
    first = max(0, last - size)
    sides = []
    for wanted in (range(first, last), range(last, last + 1)):
        launches = tuple(one for one, number in zip(whole.launches, numbers, strict=True) if number in wanted)
        newest = max(launches, key=lambda launch: launch.started)
        own = next(one for one in found if newest.started in {launch.started for launch in one.launches})
        sides.append(replace(own, launches=launches, excluded=0))
    return replace(sides[0], label=f"the {last - first} sittings before"), sides[1]
