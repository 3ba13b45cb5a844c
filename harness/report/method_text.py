"""How times, ratios and intervals are computed, for pages and for a paper's section on methods.

Each sentence on the method stands here once; docs/method.md has the same sentences (a test compares them).
"""

from collections.abc import Sequence

import harness.base
from harness.analysis import units
from harness.analysis.confidence_intervals import FEWEST_BLOCKS
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import Scaling
from harness.analysis.turn_blocks import LEAST_ROUNDS
from harness.datasets import dataset_info, dataset_names
from harness.report.answer import distinct
from harness.report.captions import OF_THIS_SESSION
from harness.report.html_pages import render_page
from harness.report.run_words import commit_words, data_words, days, gpu_kinds, machines_words, settings_words
from harness.schema.record import RunRecord

ESTIMAND = (
    "The speedup of P ranks is the time of one rank, averaged over the cores on which it may run, divided by the time "
    "of P ranks, for the same samples."
)
"""What a speedup is."""
TURNS = (
    "All layouts of a repeat, a block, trained interleaved, in slices of about 50 ms on the same cores, one slice each "
    "a round, in random order; a single rank takes its slices on the cores of the block, one after the other. A "
    "slice's time is the slowest rank's."
)
UNDISTURBED = (
    "Excluding contended rounds: rounds in which other work had more than 5 % of a rank's core in any slice are left "
    "out as a whole"
)
BLOCK_NUMBER = (
    "A block's number is the mean of its rounds' log ratios, winsorised at 2.5 % per tail, to the single rank's mean "
    "over its cores. Incl. interference: total seconds over total steps of all slices, what a user waits for."
)
OVER_BLOCKS = (
    "Times are geometric means over blocks, speedups the ratios of the times, 95 % CIs Student's t over blocks."
)
ONE_ALLOCATION = (
    "All blocks are of one allocation: the intervals hold what varies from start to start on these nodes, not between "
    "nodes or days."
)
ALLOCATIONS = (
    "The blocks are of {count} allocations and count as one sample: where allocations differ more than the blocks of "
    "one, the intervals are too narrow for another allocation."
)
LAUNCH_TIME = "A launch's time is the median over its epochs of the slowest rank's training time, without evaluation."
REPEATS = (
    "A block is a repeat: one launch of each layout in one session, one after the other, in random order. Where the "
    "repeats of a layout are not those of the base, the launches of both count as unrelated (Welch's t)."
)
LAUNCH_INTERVALS = (
    f"Intervals need {FEWEST_BLOCKS} launches. Points launched in other sessions than the base (nothing ran for an "
    "hour between them) have no interval of a ratio."
)
VARIATION = (
    "Variation, between launches and within one, is a relative standard deviation. A step's time is its epoch's over "
    "the number of steps. Outliers (Tukey's fences) are marked and counted; invalid launches count nowhere and are "
    "listed below."
)


def method(scaling: Scaling) -> str:
    """Return how a time, a ratio and an interval are computed."""
    if scaling.has_turns:
        undisturbed = f"{UNDISTURBED}, here {units.percent(scaling.left_out)} of them."
        if scaling.short_blocks and scaling.short_blocks == scaling.disturbed_blocks:
            undisturbed += (
                f" {units.plural(scaling.short_blocks, 'block')} with fewer than {LEAST_ROUNDS} rounds in all"
            )
            undisturbed += " have times including interference only: train for more steps."
        elif scaling.disturbed_blocks and scaling.is_as_it_ran:
            undisturbed += f" No block has {LEAST_ROUNDS} other rounds, so that all times are including interference."
        elif scaling.disturbed_blocks:
            blocks = units.plural(scaling.disturbed_blocks, "block")
            undisturbed += f" Left out as a whole: {blocks} with fewer than {LEAST_ROUNDS} other rounds."
        method_in_turns = f"{ESTIMAND} {TURNS} {undisturbed} {BLOCK_NUMBER} {OVER_BLOCKS}"
        return f"{method_in_turns} {OF_THIS_SESSION} {VARIATION}"
    ratio = "" if scaling.scaling == "strong" else " A speedup is the ratio of the times, times that of the ranks."
    return f"{LAUNCH_TIME} {REPEATS} {OVER_BLOCKS}{ratio} {LAUNCH_INTERVALS} {OF_THIS_SESSION} {VARIATION}"


def allocations(loaded: Loaded, scaling: Scaling) -> str:
    """Return which variance the intervals of a batch system's blocks hold; nothing on one machine."""
    of_blocks = {run.point.folder for run in loaded.runs if run.block}
    jobs = {account.job for account in loaded.accounts if account.launch in of_blocks}
    if not jobs or not scaling.has_turns:
        return ""
    return ONE_ALLOCATION if len(jobs) == 1 else ALLOCATIONS.format(count=len(jobs))


def methods(loaded: Loaded, scaling: Scaling) -> str:
    """Return a paragraph: what was trained, on what, where, with which versions, how often, how it was evaluated."""
    runs = loaded.valid
    run = runs[0]
    workload = run.point.workload
    origin = run.provenance
    ranks = " and ".join(distinct(point.ranks for point in scaling.points).rsplit(", ", 1))
    reductions = distinct(valid.provenance.reduction for valid in runs if len(valid.ranks) > 1)
    commits = distinct(commit_words(valid.provenance) for valid in runs)
    excluded = len(loaded.runs) - len(runs)
    exclusion = "No launch was excluded."
    if excluded:
        launches = units.plural(excluded, "launch")
        exclusion = f"{launches} with invalid times (other load, missing cores) were excluded."
    parts = [
        f"We measured the {scaling.scaling} scaling of {workload.name} ({units.count(run.weights.parameters)} "
        f"trained parameters; {'; '.join(settings_words(workload))}) on {data_words(run)} (test samples: "
        f"{units.count(run.data.test_rows)}; SHA-256 of the source {run.data.sha256[:16]}).",
        f"Replicas trained synchronously with TensorFlow {distinct(valid.provenance.tensorflow for valid in runs)} and "
        f"Keras {origin.keras} on {ranks} MPI ranks ({origin.mpi_library.partition(',')[0]}, mpi4py {origin.mpi4py}; "
        f"{reductions or 'one rank, no allreduce'}), "
        f"{_threads(runs)}.",
        f"Hardware: {_hardware(runs)}; {origin.machine.os}. Measured {days(valid.started for valid in runs)}.",
        *_methods_of_times(scaling),
        exclusion,
        f"Software: mpi-tf-harness {origin.harness}, commit {commits}; Python {origin.python}, NumPy {origin.numpy}.",
    ]
    return " ".join(parts).replace("\u00a0", " ")


def _hardware(runs: Sequence[RunRecord]) -> str:
    """Return the machines of `runs`, and which GPUs they had."""
    machines = [run.provenance.machine for run in runs]
    kinds = gpu_kinds(machines)
    return f"{machines_words(machines)} ({kinds})" if kinds else machines_words(machines)


def _threads(runs: Sequence[RunRecord]) -> str:
    """Return how many threads and cores a rank had, as a part of a sentence."""
    threads = distinct(run.point.layout.threads for run in runs)
    if threads == "1":
        return "each rank with one TensorFlow thread on a core of its own"
    return f"each rank with {threads} TensorFlow threads on as many cores of its own"


def _methods_of_times(scaling: Scaling) -> tuple[str, str]:
    """Return how often was launched and how times and ratios were formed, and what the intervals are."""
    low, high = scaling.repeats
    base = f"{units.ranks(scaling.base.ranks)} ({units.seconds(scaling.base.seconds)} per epoch)"
    often = f"Each layout was launched {units.span(low, high)} times"
    if scaling.has_turns:
        return (
            f"{often}; all layouts of a repeat trained interleaved, in slices of about 50 ms on the same cores. "
            f"{ESTIMAND} {_rounds_words(scaling)} Speedups are geometric means over blocks, over {base}.",
            "95 % CIs are Student's t over blocks.",
        )
    intervals = "95 % CIs are Student's t over blocks, those of times of this session only."
    if low < FEWEST_BLOCKS:
        intervals = f"With fewer than {FEWEST_BLOCKS} launches of a layout we give no intervals there."
    return (
        f"{often}, all layouts of a repeat, a block, one after the other in shuffled order. A launch's time is the "
        "median over its epochs of the slowest rank's training time after compilation and warm-up, without evaluation; "
        f"a point's time is the geometric mean over blocks, speedup the ratio of these over {base}.",
        intervals,
    )


def _rounds_words(scaling: Scaling) -> str:
    """Return which rounds of a block count, and what is formed from them."""
    if scaling.is_as_it_ran:
        return "All rounds count, also those that other work met: a block's times are total seconds over total steps."
    return (
        "Rounds in which other work had more than 5 % of a rank's core in any slice were left out as a whole "
        f"({units.percent(scaling.left_out)} of them). A block's ratio is the mean of its rounds' log ratios, "
        "winsorised at 2.5 % per tail."
    )


def bibtex(runs: Sequence[RunRecord]) -> str:
    """Return the BibTeX entries of what `runs` (at least one) rest on, with the versions that ran."""
    run = runs[0]
    return render_page(
        "references.bib.j2",
        run=run,
        origin=run.provenance,
        authors=harness.base.AUTHORS,
        address=harness.base.ADDRESS,
        commits=distinct(commit_words(valid.provenance) for valid in runs),
        year=runs[-1].started.year,
        data=dataset_info(run.data.name) if run.data.name in dataset_names() and run.data.kind == "real" else None,
    )
