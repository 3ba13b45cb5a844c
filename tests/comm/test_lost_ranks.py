"""Which errors mean that a rank is lost."""

import pickle

import pytest
import tensorflow as tf

from harness.base.errors import RunError, SharedError
from harness.comm.lost_ranks import Loss, LostRankError, find_loss, forget_losses, noting_loss
from harness.schema.record import LossReason


def test_only_a_code_of_mpi_or_of_a_sum_is_a_lost_rank():
    from mpi4py import MPI

    gone = Loss(reason=LossReason.GONE, rank=2)
    assert find_loss(MPI.Exception(MPI.ERR_REVOKED)) == Loss(reason=LossReason.MPI)
    assert find_loss(pickle.loads(pickle.dumps(LostRankError("a sum failed", gone)))) == gone
    assert find_loss(SharedError(LostRankError("a sum failed", gone))) == gone
    assert find_loss(MPI.Exception(MPI.ERR_TRUNCATE)) is None
    assert find_loss(RunError("lost rank 2: its process is gone: MPI_ERR_PROC_FAILED")) is None


def test_a_loss_inside_a_graphs_python_is_found_in_tensorflows_error():
    from mpi4py import MPI

    with pytest.raises(MPI.Exception), noting_loss():
        raise MPI.Exception(MPI.ERR_PROC_FAILED)
    error = tf.errors.UnknownError(None, None, "Exception")
    assert find_loss(error) == Loss(reason=LossReason.MPI)
    forget_losses(0)
    assert find_loss(error) is None and find_loss(tf.errors.AbortedError(None, None, "")) is None
