"""What is known of a script's loop over a data set, and what is forgotten of it."""

from harness.transparent.dataset_loop import DatasetLoop


def test_a_loop_that_is_observed_again_has_forgotten_what_it_trains():
    loop = DatasetLoop(dataset=None, lines=(("script.py", 3),), trains=True, is_observed=False, takes_gradients=True)
    loop.steps.add("step")
    loop.owners.add(7)
    loop.observe_again()
    assert (loop.trains, loop.is_observed, loop.takes_gradients) == (False, True, False)
    assert not loop.steps
    assert not loop.owners


def test_a_later_loop_of_the_same_lines_takes_over_what_was_found_out():
    earlier = DatasetLoop(dataset=None, lines=(("script.py", 3),), trains=True, takes_gradients=True, owners={7})
    later = DatasetLoop(dataset=None, lines=earlier.lines)
    later.take_over(earlier)
    assert later.trains
    assert not later.is_observed
    assert later.place == earlier.place


def test_the_trial_of_a_loop_is_known_by_its_lines_and_by_what_they_train():
    lines = (("script.py", 3), ("script.py", 9))
    assert DatasetLoop(dataset=None, lines=lines, owners={9, 2}).place == (*lines, 2, 9)
