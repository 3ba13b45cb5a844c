"""What is known of a training, and how that changes: a compiled step, or the gradients that a loop takes itself.

A training is *unknown* until it is seen to train, *idle* where a step does not. It is *probed* on a whole batch or, in
the first batches of an eager loop, on trial. From then on its batches are *divided*, or every rank computes them
*whole*. It is *refused* where something else was trained among divided batches than had been probed, and parts of a
batch are not enough for it.
"""

from enum import Enum


class TrainingState(Enum):
    """What is known of a training."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    PROBED = "probed"
    DIVIDED = "divided"
    WHOLE = "whole"
    REFUSED = "refused"


class TrainingEvent(Enum):
    """What has been seen of a training."""

    NOTHING_TRAINED = "a call has made no gradient and no optimizer's step"
    TRAINED = "it has trained, with a whole batch"
    INDEPENDENT = "its gradients and numbers are means or sums over rows"
    MIXED = "they are neither, or it takes one number of rows"
    NOT_SHARED = "the sync policy averages weights, which asks for no probe"
    SPOILT = "a part of a batch has been trained that was not enough"


_S, _E = TrainingState, TrainingEvent
TRANSITIONS = {
    (_S.UNKNOWN, _E.NOTHING_TRAINED): _S.IDLE,
    (_S.UNKNOWN, _E.TRAINED): _S.PROBED,
    (_S.UNKNOWN, _E.NOT_SHARED): _S.DIVIDED,
    (_S.IDLE, _E.NOTHING_TRAINED): _S.IDLE,
    (_S.IDLE, _E.TRAINED): _S.PROBED,
    (_S.IDLE, _E.NOT_SHARED): _S.DIVIDED,
    (_S.PROBED, _E.INDEPENDENT): _S.DIVIDED,
    (_S.PROBED, _E.MIXED): _S.WHOLE,
    (_S.PROBED, _E.SPOILT): _S.REFUSED,
}
"""From a state and an event to the next state; what is not there cannot happen."""


def advance(state: TrainingState, event: TrainingEvent) -> TrainingState:
    """Return the state that follows `state` at `event`."""
    return TRANSITIONS[state, event]
