"""A rename that the kernel refuses between two mounts of one place is made by a copy."""

import errno
import os

import pytest

from harness.transparent.crossing_renames import CrossingRenames


def refuse_once(error):
    """Return a rename that fails the first time, as between two mounts."""
    refusals = [error]

    def rename(source, target, **folders):
        if refusals:
            raise OSError(refusals.pop(), "refused")
        os.rename(source, target, **folders)  # noqa: PTH104 - as the original is called

    return rename


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_file_and_a_folder_cross_mounts_of_one_place(tmp_path, is_folder):
    source, target = tmp_path / "source", tmp_path / "target"
    if is_folder:
        source.mkdir()
    (source / "part" if is_folder else source).write_text("rows")
    CrossingRenames(lambda old, new: True)._rename(refuse_once(errno.EXDEV), str(source), str(target))
    assert (target / "part" if is_folder else target).read_text() == "rows"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize(("error", "one_place"), [(errno.EXDEV, False), (errno.EACCES, True)])
def test_what_one_process_could_not_rename_stays_refused(tmp_path, error, one_place):
    source = tmp_path / "source"
    source.write_text("rows")
    with pytest.raises(OSError, match="refused"):
        CrossingRenames(lambda old, new: one_place)._rename(refuse_once(error), source, tmp_path / "target")
    assert source.read_text() == "rows"
