"""Sums by the native operation in pieces."""

from hypothesis import given
from hypothesis import strategies as st

from harness.comm.native_reduction import in_pieces

MB = 2**20


@given(st.lists(st.integers(0, 3 * MB), max_size=40))
def test_pieces_are_of_about_a_megabyte_and_the_last_tensors_come_first(sizes: list[int]) -> None:
    pieces = in_pieces(sizes)
    assert [number for piece in pieces for number in piece] == list(reversed(range(len(sizes))))
    for piece in pieces[:-1]:
        assert sum(sizes[number] for number in piece) >= MB
    for piece in pieces:
        assert sum(sizes[number] for number in piece[:-1]) < MB
