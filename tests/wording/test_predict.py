"""What a prediction says of what it is made from."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.analysis.read_results import load_sweep
from harness.base.errors import UserError
from harness.prediction.measured_base import measured_base
from harness.prediction.network_cost import Levels, Link, Uncertain, read_links
from harness.prediction.step_model import assumptions, predict_network
from tests.labs.factories import make_launch, write_run, write_study

LINK = Link(alpha_s=2e-6, beta_s_per_byte=1e-10)


FLAT = Levels(network=LINK)


def test_a_rank_that_is_always_slower_stays_so_in_the_prediction(tmp_path: Path) -> None:
    """Rank 1 computes 30 ms where rank 0 takes 20: each over its own mean, both looked alike."""
    write_study(tmp_path / "study", ranks=(1, 2))
    write_run(tmp_path / "study", make_launch(1, 0, 2.0, sync=0.0))
    folder = write_run(tmp_path / "study", make_launch(2, 0, 1.5))
    steps = [
        {"epoch": epoch, "step": step, "rank": rank, "begin_s": 0.0, "entry_s": came, "exit_s": 0.1 * step}
        for epoch in range(3)
        for rank, compute in ((0, 0.02), (1, 0.03))
        for step in range(50)
        for came in (0.1 * (step - 1) + compute,)
    ]
    pq.write_table(pa.Table.from_pylist(steps), folder / "steps.parquet")
    found = measured_base(load_sweep(tmp_path / "study"))
    assert found.imbalance == pytest.approx((0.8, 1.2)) and max(found.jitter) == pytest.approx(1)
    row = predict_network(found, [2], Uncertain.exact(FLAT)).iloc[0]
    assert row["straggler_s"] == pytest.approx((3 / 4 * 1.2 + 1 / 4 * 0.8 - 1) * row["compute_s"])
    assert any("1.200 times the mean" in sentence for sentence in assumptions(found, [2]))


@pytest.mark.parametrize("text", ["fast", "1e-6", "-1e-6,1e-9", "1e-6,1e,9", "nan,1e-9", "1,2,3"])
def test_a_network_that_is_none_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"NETWORK=.* is "):
        read_links(text, None, 1)
