"""Advice: what a job was said to take before it ran; its launches score it afterwards."""

from dataclasses import dataclass
from datetime import datetime

from harness.schema.layout import Layout

ADVICE = "advice"  # results/<sweep>/advice/<layout and length>.json


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One layout of one sweep for a job of `epochs`, or until `target` test accuracy.

    `seconds` of the whole job from the start of its processes, `low` and `high` the ends of the 95 % interval for one
    launch. `measured`: from launches on this layout, else from growth models. `asked` is the limit in words.
    """

    schema: int
    made: datetime
    asked: str
    layout: Layout
    epochs: int
    target: float | None
    measured: bool
    seconds: float
    low: float
    high: float

    @property
    def file(self) -> str:
        """The name of its file: the same for the same question about the same layout."""
        layout = self.layout
        length = f"e{self.epochs}" if self.target is None else f"a{self.target:g}"
        return f"n{layout.nodes}x{layout.ranks_per_node}x{layout.threads}-{length}.json"
