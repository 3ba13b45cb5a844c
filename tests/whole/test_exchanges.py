"""All ranks make the same exchanges in one order, which the graph keeps; where they do not, a sentence ends them."""

import random
from unittest.mock import MagicMock

import pytest

from tests.mpi.launch import PROGRAMS, run_ranks

ROUNDS = 3


@pytest.fixture
def reduction():
    """Return the sums of a world of one rank, through Python: every exchange takes the same way as with several."""
    tf = pytest.importorskip("tensorflow")
    from mpi4py import MPI

    from harness.comm.reduction import BridgeReduction

    if not MPI.Is_initialized():  # a test before this one built the native operation, which asks MPI for its name only
        MPI.Init()
    tf.config.run_functions_eagerly(False)
    return BridgeReduction(MPI.COMM_SELF)


def random_program(reduction, generator, depth=0):
    """Return a graph function of random exchanges, nested functions, conditionals and loops, and what it must exchange.

    An exchange of n numbers is told from others by n; those made later need not wait for any value.
    """
    import tensorflow as tf

    parts, expected = [], []
    for _ in range(generator.randint(2, 4)):
        kind = generator.choice(["sum", "slow sum"] if depth == 2 else ["sum", "slow sum", "call", "if", "loop"])
        if kind in ("sum", "slow sum"):
            size = generator.randint(1, 10_000)
            parts.append((kind, size))
            expected.append(size)
            continue
        inner, sizes = random_program(reduction, generator, depth + 1)
        parts.append((kind, tf.function(inner)))
        expected += sizes * (2 if kind == "loop" else 1)

    def program(x):
        for kind, what in parts:
            if kind == "slow sum":  # its value comes late: what follows must wait all the same
                matrix = tf.ones([300, 300])
                for _ in range(5):
                    matrix = matrix @ matrix / 300.0
                reduction.sum([tf.ones([what]) * matrix[0, 0]], label=str(what))
            elif kind == "sum":
                reduction.sum([tf.ones([what])], label=str(what))
            elif kind == "call":
                what(x)
            elif kind == "if":
                tf.cond(x > 0, lambda run=what: run(x), lambda: x)
            else:
                tf.while_loop(lambda i: i < 2, lambda i, run=what: (i + 1 + 0 * tf.cast(run(x), tf.int32),), [0])
        return x

    return program, expected


@pytest.mark.parametrize("seed", range(8))
def test_exchanges_run_in_the_order_in_which_they_are_written(reduction, seed):
    import tensorflow as tf

    program, expected = random_program(reduction, random.Random(seed))
    run = tf.function(program)
    for _ in range(ROUNDS):
        before = len(reduction.recent())
        run(tf.constant(1.0))
        exchanged = [int(call[1]) // 4 for call in reduction.recent()]
        count = min(len(expected), 32)  # as many as are kept
        assert exchanged[-count:] == expected[-count:], (before, seed)


def test_a_session_keeps_the_order_too(reduction):
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        matrix = tf.ones([500, 500])
        for _ in range(10):
            matrix = matrix @ matrix / 500.0
        (late,) = reduction.sum([tf.ones([7]) * matrix[0, 0]], label="late")
        (early,) = reduction.sum([tf.ones([5])], label="early")
        session.run([early, late])
    assert [int(call[1]) // 4 for call in reduction.recent()] == [7, 5]


def test_the_way_of_a_scripts_sums_is_tried_with_the_tensors_that_it_trains(reduction, monkeypatch):
    import tensorflow as tf

    from harness.comm import grouped_sums
    from harness.transparent import collectives

    tried = []
    monkeypatch.setattr(
        grouped_sums, "select", lambda world, tensors, **options: tried.append((tensors, options)) or reduction
    )
    gradients = [tf.ones([100, 300]), tf.ones([300])]
    collectives.Collectives(MagicMock(size=2), None, MagicMock()).sum(gradients, "gradients")
    ((tensors, options),) = tried
    assert tensors == [120_000, 1_200] and options["room"] >= sum(tensors)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("choice", "fault"),
    [("native", "label"), ("native", "two at once"), ("messages", "label"), ("bridge", "label")],
)
def test_ranks_in_different_exchanges_end_with_a_sentence_that_names_both(choice, fault):
    finished = run_ranks(2, PROGRAMS / "mismatch.py", choice, fault, timeout=100)
    assert finished.returncode != 0 and "ENDED" not in finished.stdout
    told = [line for line in finished.stderr.splitlines() if "harness: " in line]  # mpirun's lines may cut into it
    assert len(told) == 1, finished.stderr
    assert "'gradients'" in told[0] and "'reported losses'" in told[0] and "rank 0" in told[0]
    if fault != "two at once":
        assert "1000 float32" in told[0] and "rank 1" in told[0]
