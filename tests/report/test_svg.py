"""How the series of a figure look."""

from harness.report.svg import MARKERS, SERIES, TONES, mark


def test_series_differ_in_more_than_colour() -> None:
    looks = {(m.colour, m.marker, str(m.dashes)) for m in map(mark, range(21))}
    assert len(looks) == 21 and len(set(MARKERS)) == len(SERIES)
    assert len({tone.light for tone in TONES}) == len({tone.dark for tone in TONES}) == len(TONES)
