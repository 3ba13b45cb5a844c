"""What launches of a sweep will take, by what earlier ones of the same workload and scheduler took."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from harness.base.errors import UserError
from harness.schema.layout import Layout
from harness.schema.record import RunRecord, decode_file, read_point
from harness.schema.sweep_folder import LaunchFolder, SweepFolder
from harness.sweep.turn_block import SeriesProgress


@dataclass(frozen=True, kw_only=True, slots=True)
class PastLaunches:
    """The median `seconds` that a launch of each layout took, by so many `launches`; of a block each has its share."""

    seconds: Mapping[Layout, float] = field(default_factory=dict)
    launches: int = 0

    def total(self, layouts: Iterable[Layout]) -> float | None:
        """Return the seconds of one launch of each of `layouts`, None where none of any layout is known.

        One that is not known takes as long as the longest of those that are, and longer in proportion where it has
        fewer cores than all of them.
        """
        if not self.seconds:
            return None
        longest = max(self.seconds.values())
        fewest = min(layout.cores for layout in self.seconds)
        total = 0.0
        for layout in layouts:
            unknown = longest * max(1.0, fewest / layout.cores)
            total += self.seconds.get(layout, unknown)
        return total


def past_launches(files: SweepFolder, partition: str) -> PastLaunches:
    """Return what launches of the sweep of `files` took: in blocks in `partition`, else one by one.

    Of several blocks of a job the first does not count: it may have compiled what the others found. Nor does one in
    which a launch failed: it may have ended early.
    """
    shares = list(_shares_of_blocks(files, partition)) or list(_launches_alone(files))
    by_layout: dict[Layout, list[float]] = {}
    for layout, seconds in shares:
        by_layout.setdefault(layout, []).append(seconds)
    medians = {layout: median(values) for layout, values in by_layout.items()}
    return PastLaunches(seconds=medians, launches=len(shares))


def _shares_of_blocks(files: SweepFolder, partition: str) -> Iterator[tuple[Layout, float]]:
    """Yield the layout of each launch of a block that came to its end, and its share of the block's seconds."""
    for path in files.all_blocks_made():
        progress = decode_file(path, SeriesProgress)
        if progress is None or progress.partition != partition:
            continue
        whole = [block for block in progress.blocks if not block.code]
        counted = whole[1:] or whole
        for block in counted:
            for layout in _layouts(files, block.launches):
                yield layout, block.seconds / len(block.launches)


def _layouts(files: SweepFolder, launches: Sequence[str]) -> Iterator[Layout]:
    for launch in launches:
        try:
            yield read_point(files.point(launch)).layout
        except UserError:  # removed, or of another version
            continue


def _launches_alone(files: SweepFolder) -> Iterator[tuple[Layout, float]]:
    """Yield layout and seconds of each launch that trained in no block, whatever version of the code it ran."""
    for folder in files.records():
        try:
            record = decode_file(LaunchFolder(folder).record, RunRecord)
        except UserError:
            continue
        if record is not None and not record.block:
            yield record.point.layout, record.wall_seconds
