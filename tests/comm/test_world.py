"""How ranks are started: a world of another size than the layout is refused, by a class of its own where it is one."""

import pytest

from harness.base.errors import SharedError
from harness.base.exit_codes import SEPARATE_WORLDS
from harness.comm.world import World, check_world_size


@pytest.mark.parametrize(("size", "exit_code"), [(1, SEPARATE_WORLDS), (2, 2)])
def test_another_number_of_ranks_than_the_layout_has_ends_with_a_code_that_says_whether_all_were_alone(
    size: int, exit_code: int
) -> None:
    world = World(comm=None, rank=0, size=size)  # type: ignore[arg-type]
    with pytest.raises(SharedError) as refused:
        check_world_size(world, 4)
    assert refused.value.error.exit_code == exit_code
    check_world_size(world, size)
