"""Settings in messages, as the command line that was typed has them."""

import pytest

from harness.base.setting_names import arguments_of_a_call, setting, settings_of_make


@pytest.mark.parametrize(
    ("value", "after_harness", "after_make"),
    [
        (None, "--batch-per-rank", "BATCH_PER_RANK="),
        (64, "--batch-per-rank 64", "BATCH_PER_RANK=64"),
        (True, "--batch-per-rank", "BATCH_PER_RANK=1"),
        ("two words", "--batch-per-rank 'two words'", "BATCH_PER_RANK='two words'"),
        ("$HOME", "--batch-per-rank '$HOME'", "BATCH_PER_RANK='$$HOME'"),
    ],
)
def test_a_setting_can_be_pasted_behind_the_command(value: object, after_harness: str, after_make: str) -> None:
    assert setting("batch_per_rank", value) == after_harness
    with settings_of_make():
        assert setting("batch_per_rank", value) == after_make
    assert setting("batch_per_rank", value) == after_harness


def test_a_setting_in_a_script_is_an_argument() -> None:
    with settings_of_make(), arguments_of_a_call():
        assert setting("separator") == "separator="
        assert setting("data-dir", "my files") == "data_dir='my files'"
        assert setting("label", 3) == "label=3"
    assert setting("separator") == "--separator"


def test_the_settings_of_a_make_within_a_make_end_with_the_outer_one() -> None:
    with settings_of_make():
        with settings_of_make():
            pass
        assert setting("nodes") == "NODES="
    assert setting("nodes") == "--nodes"
