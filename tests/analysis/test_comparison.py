"""Which launches of a layout are compared."""

import pandas as pd

from harness.analysis.comparison import undisturbed_launches


def test_a_layout_whose_launches_were_all_disturbed_keeps_them() -> None:
    launches = pd.DataFrame(
        {"layout": ["one", "one", "two", "two"], "disturbed": [True, False, True, True], "repeat": [0, 1, 0, 1]}
    )
    left = undisturbed_launches(launches)
    assert list(zip(left["layout"], left["repeat"], strict=True)) == [("one", 1), ("two", 0), ("two", 1)]
