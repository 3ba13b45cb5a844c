"""The registry of rules that judge claims: functions of the claim and of the sweeps that compare, best first."""

from collections.abc import Callable, Mapping, Sequence

from harness.claims.claim_evidence import ClaimEvidence
from harness.claims.claim_verdict import ClaimFinding
from harness.claims.curve_rules import (
    curve_flattens,
    every_step_gains,
    gains_less_than,
    larger_network_gains_as_much,
    rows_in_equal_time,
    speedup,
)
from harness.claims.study_rules import (
    accuracy_in_time,
    computation_falls_and_exchange_does_not,
    more_epochs_gain_more,
    reading_by_one_rank_is_minor,
    same_loss_with_same_batches,
)
from harness.schema.claim import Claim, Rule

RULES: Mapping[Rule, Callable[[Claim, Sequence[ClaimEvidence]], ClaimFinding]] = {
    Rule.SPEEDUP: speedup,
    Rule.ROWS_IN_EQUAL_TIME: rows_in_equal_time,
    Rule.EVERY_STEP_GAINS: every_step_gains,
    Rule.CURVE_FLATTENS: curve_flattens,
    Rule.GAINS_LESS_THAN: gains_less_than,
    Rule.LARGER_NETWORK_GAINS_AS_MUCH: larger_network_gains_as_much,
    Rule.ACCURACY_IN_TIME: accuracy_in_time,
    Rule.MORE_EPOCHS_GAIN_MORE: more_epochs_gain_more,
    Rule.READING_BY_ONE_RANK_IS_MINOR: reading_by_one_rank_is_minor,
    Rule.COMPUTATION_FALLS_AND_EXCHANGE_DOES_NOT: computation_falls_and_exchange_does_not,
    Rule.SAME_LOSS_WITH_SAME_BATCHES: same_loss_with_same_batches,
}
"""All rules but `Rule.PARAMETER_SERVERS_ARE_SLOWER`, which is judged by a bench."""
