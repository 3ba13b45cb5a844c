"""Which rank owns which rows, and in which order an epoch visits them, whatever the number of ranks.

The rows are cut into as many contiguous *lanes* as the global batch has rows. A step takes one row from every
lane, so lane j fills slot j of every global batch. A rank owns a contiguous run of lanes, and so a contiguous
run of rows. Each lane is shuffled by (seed, epoch, lane) alone: the global batches are the same for every number
of ranks, every row belongs to exactly one rank, and every rank makes the same number of steps.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int32]

_WORDS = 4  # 64-bit words that one Philox counter step yields


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """The division of `rows` rows over `ranks` for a global batch of `batch` rows, in equal parts.

    Where rows or batch do not divide, parts differ by at most one lane, and a rank may own none: it takes part in every
    step with no rows.
    """

    rows: int
    batch: int
    ranks: int

    @property
    def full_steps(self) -> int:
        """Steps of an epoch in which every lane gives a row."""
        return self.rows // self.batch

    @property
    def remainder(self) -> int:
        """Rows of the epoch's partial last batch over all ranks; 0 when rows divide by the batch."""
        return self.rows % self.batch

    def steps(self, drop_remainder: bool) -> int:
        """Return an epoch's steps, its partial batch among them unless that is dropped."""
        return self.full_steps + (bool(self.remainder) and not drop_remainder)

    def lanes(self, rank: int) -> range:
        """Return the lanes that `rank` owns: its rows of a full global batch."""
        return range(self._first_lane(rank), self._first_lane(rank + 1))

    def own_rows(self, rank: int) -> range:
        """Return the rows that `rank` owns, contiguous in the data set."""
        lanes = self.lanes(rank)
        return range(self._first_row(lanes.start), self._first_row(lanes.stop))

    def weight(self, rank: int) -> float:
        """Return the rank's part of all rows."""
        return len(self.own_rows(rank)) / self.rows

    def partial(self, rank: int) -> range:
        """Return which rows of the epoch's partial batch are the rank's, counted from the batch's first."""
        lanes = self.lanes(rank)
        rows = self.own_rows(rank)
        return range(rows.start - self.full_steps * lanes.start, rows.stop - self.full_steps * lanes.stop)

    def order(self, rank: int, *, seed: int, epoch: int) -> tuple[Indices, Indices]:
        """Return the order in which `rank` visits its own rows in `epoch`.

        Returns:
            int32 [full_steps, lanes of the rank] and int32 [rows of the rank in the partial batch]: indices
            into the rank's own rows, counted from its first.
        """
        lanes = self.lanes(rank)
        starts = np.array([self._first_row(lane) for lane in range(lanes.start, lanes.stop + 1)], dtype=np.int64)
        lengths = np.diff(starts)
        longest = self.full_steps + 1  # a lane has full_steps rows or one more
        keys = _random_keys(lanes, longest, seed=seed, epoch=epoch)
        keys[lengths < longest, -1] = np.iinfo(np.uint64).max  # no such row: sorts behind all that exist
        ranked = np.argsort(keys, axis=1)
        first = (starts[:-1] - starts[0]).astype(np.int32)[:, np.newaxis]
        visits = ranked.astype(np.int32) + first
        full = np.ascontiguousarray(visits[:, : self.full_steps].T)
        return full, visits[lengths == longest, self.full_steps]

    def _first_lane(self, rank: int) -> int:
        return self.batch * rank // self.ranks

    def _first_row(self, lane: int) -> int:
        return lane * self.rows // self.batch


def _random_keys(lanes: range, length: int, *, seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    """Return uint64 [lanes, length] below 2**63; a row depends on seed, epoch and its lane's number only."""
    padded = -(-length // _WORDS) * _WORDS
    generator = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64))
    generator.advance(lanes.start * (padded // _WORDS))
    raw = generator.random_raw(len(lanes) * padded).reshape(len(lanes), padded)
    return np.ascontiguousarray(raw[:, :length]) >> np.uint64(1)


def split_evenly(rows: int, parts: int, part: int) -> range:
    """Return the contiguous rows of `part` when `rows` rows are split over `parts` as evenly as they go."""
    return range(part * rows // parts, (part + 1) * rows // parts)
