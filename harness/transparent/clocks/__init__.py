"""What a script reads from its surroundings, as in one process: its rank, clocks and signals."""

from harness.transparent.clocks.agreed_clocks import AgreedClocks
from harness.transparent.clocks.agreed_signals import AgreedSignals
from harness.transparent.clocks.clock_line import Address, ClockLine, ClockSource, hear
from harness.transparent.clocks.rank_variables import RankVariables

__all__ = ["Address", "AgreedClocks", "AgreedSignals", "ClockLine", "ClockSource", "RankVariables", "hear"]
