"""What the noise of a machine lets a check see, and with how many launches."""

from dataclasses import dataclass

from harness.analysis.stats import NEEDED
from harness.regression.noise import Noise, learn
from harness.regression.quantities import RELATIVE, Sample, samples
from harness.regression.verdict import as_cost, as_loss
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement

_MOST_LAUNCHES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """The noise of one quantity at one layout (None: the curve), in parts of speed, efficiency or an epoch.

    `spread` is one launch's standard deviation, `floor` what noise alone seldom exceeds between 6 launches
    and as many as were measured. `launches_for` gives for a loss the launches (of each layout, against as many
    as were measured) from which it stands out, None where that takes more than a hundred.
    """

    quantity: str
    layout: Layout | None
    launches: int
    spread: float
    inflation: float
    floor: float
    launches_for: dict[float, int | None]


def floors(measurement: Measurement, losses: tuple[float, ...] = (0.05, 0.10)) -> tuple[Floor, ...]:
    """Return the noise floor of every quantity that decides, from A/A launches (`measurement`)."""
    found = [sample for sample in samples(measurement, measurement, measurement.layouts) if sample.decides]
    rows = []
    for sample in found:
        noise = learn([sample.costs])
        if noise is not None:
            rows.append(_floor(sample, noise, losses, comparisons=len(found)))
    return tuple(rows)


def _floor(sample: Sample, noise: Noise, losses: tuple[float, ...], comparisons: int) -> Floor:
    relative = sample.quantity in RELATIVE
    launches = len(sample.costs)

    def needed(loss: float) -> int | None:
        cost = as_cost(loss, relative)
        enough = (n for n in range(NEEDED, _MOST_LAUNCHES) if noise.floor(n, launches, comparisons) < cost)
        return next(enough, None)

    return Floor(
        quantity=sample.quantity,
        layout=sample.layout,
        launches=launches,
        spread=as_loss(noise.deviation, relative),
        inflation=noise.inflation,
        floor=as_loss(noise.floor(NEEDED, launches, comparisons), relative),
        launches_for={loss: needed(loss) for loss in losses},
    )
