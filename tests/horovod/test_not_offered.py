"""What of Horovod's interface is not here is named in one sentence, with what to do."""

import pytest

from harness.base.errors import UserError
from harness.horovod.not_offered import INSTEAD, not_offered, refuse_arguments


@pytest.mark.parametrize("name", INSTEAD)
def test_a_name_is_refused_with_what_to_do(name):
    error = not_offered(name)
    assert isinstance(error, UserError)
    assert name in str(error) and INSTEAD[name] in str(error)


def test_horovods_arguments_are_refused_and_those_of_nobody_as_python_does():
    refuse_arguments("allreduce", {})
    with pytest.raises(UserError, match="prescale_factor"):
        refuse_arguments("allreduce", {"prescale_factor": 1.0})
    with pytest.raises(TypeError, match="nothing"):
        refuse_arguments("allreduce", {"nothing": 1.0})
