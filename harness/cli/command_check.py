"""``harness check``: did it get worse?"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.errors import RunError, UserError
from harness.base.setting_names import setting
from harness.cli.answer_output import answering, format_options
from harness.cli.common_options import (
    GroupedCommand,
    NumberRange,
    context_options,
    given_command,
    mpi_option,
    refuse_bad_mpi,
    refuse_given,
    sweep_argument,
    threshold_option,
)
from harness.cli.launch_options import BatchOptions, approval, batch_options, build_submission
from harness.cli.study_file import study_option
from harness.cli.sweep_argument import find_measurement
from harness.cli.terminal import echo
from harness.report.answer import Answer

if TYPE_CHECKING:
    from harness.regression.measurement import Measurement
    from harness.regression.session_check import SessionCheck
    from harness.schema.sweep import Sweep
    from harness.sweep.submission_settings import Submission

_BLOCKS = 3  # of a check that has no more time
_LOOKS = (3, 6, 12, 24)  # after so many blocks a check that has more time asks whether the verdict is sure


@click.command(
    name="check",
    cls=GroupedCommand,
    brief=(
        "--against",
        "--threshold",
        "--until-sure",
        "--other-machine",
        "--study",
        "--scheduler",
        "--site",
        "--format",
        "--output",
        "--results",
        "--baselines",
        "--reports",
        "--json",
        "--quiet",
    ),
    examples=(
        "harness check",
        "harness check SWEEP --against BASELINE --threshold 5",
        "harness check --until-sure 30 --format junit --output check.xml",
    ),
)
@sweep_argument
@click.option(
    "--against", help="Baseline, sweep or SWEEP@COMMIT [default: the last baseline, with SWEEP that of its study]."
)
@threshold_option(0.1, "Least change of interest, in %.")
@click.option("--until-sure", type=NumberRange(min=0), help="Measure more blocks until it is sure, for MINUTES.")
@click.option("--other-machine", is_flag=True, help="The machine differs and has the same role: judge all the same.")
@study_option()
@batch_options
@format_options
@context_options("results", "baselines", "reports", "data_dir", measures=True)
@answering
@mpi_option
def check_command(
    sweep: str | None,
    against: str | None,
    threshold: float,
    until_sure: float | None,
    other_machine: bool,
    batch: BatchOptions,
    context: Context,
) -> Answer:
    """Judge every layout's step time, efficiency and its factors against a baseline.

    With SWEEP, those of its launches are judged that the baseline does not have. Without SWEEP, the baseline's study is
    measured again as it was recorded, as a new session in results/checks; if a sweep of the study ended within the last
    hour, that is judged and nothing is measured. Exit code 0: nothing got worse, or by less than --threshold; 1: a
    regression; 2: cannot compare (another machine, another workload, no baseline); 3: cannot tell.
    """
    from harness.regression.baselines import saved_measurements, studies_of_sweeps_and_checks
    from harness.report.session_answer import session_answer

    limit = threshold / 100
    looks = len(_LOOKS) if until_sure else 1
    judge = _Judge(threshold=limit, other_machine=other_machine, looks=looks, context=context)
    reference = find_measurement(against, results=context.results, baselines=context.baselines) if against else None
    if sweep is not None:
        refuse_given("with SWEEP nothing is trained", "until_sure", "scheduler", "data_dir")
        # Without baselines: one of that name is no sweep.
        current = find_measurement(sweep, results=context.results, baselines=None, contended_too=True)
    else:
        reference = reference or saved_measurements(context.baselines)[0]
        recent = None if until_sure else _recent_launches(reference, judge)
        current = recent if recent is not None else _measure(reference, judge, until_sure, batch)
    skipped = studies_of_sweeps_and_checks(context.results).damaged
    return session_answer(judge.check(reference, current), given_command(), skipped=skipped)


class _Judge:
    """What a check is asked for, apart from what it compares."""

    def __init__(self, *, threshold: float, other_machine: bool, looks: int, context: Context) -> None:
        self.threshold = threshold
        self.other_machine = other_machine
        self.looks = looks
        self.context = context

    def check(self, reference: "Measurement | None", current: "Measurement") -> "SessionCheck":
        """Return the verdicts on the launches of `current` that `reference`, or the last baseline, does not have.

        Raises:
            UserError: the two cannot be compared, or there are no such launches.
        """
        from harness.regression.baselines import check_comparable, default_reference, join_by_study, measured_on
        from harness.regression.measurement import without
        from harness.regression.session_check import check_sessions, tells_scatter

        context = self.context
        if reference is None:
            reference = default_reference(current, context.baselines, other_machine=self.other_machine)
        check_comparable(reference, current, other_machine=self.other_machine)
        fresh = without(current, reference)
        if not fresh.launches:
            raise UserError(
                f"the newest launches of '{current.label}' are those of '{reference.label}' itself: measure again with "
                "`harness check`, without SWEEP"
            )
        others: tuple[Measurement, ...] = ()
        if not tells_scatter(reference, fresh):
            measured = measured_on(current.machine, results=context.results, baselines=context.baselines)
            others = join_by_study(measured, excluded=fresh)
        return check_sessions(reference, fresh, threshold=self.threshold, machine_sweeps=others, looks=self.looks)

    def is_comparable(self, reference: "Measurement", current: "Measurement") -> bool:
        """Say whether the two can be compared."""
        from harness.regression.baselines import check_comparable

        try:
            check_comparable(reference, current, other_machine=self.other_machine)
        except UserError:
            return False
        return True


def _recent_launches(reference: "Measurement", judge: _Judge) -> "Measurement | None":
    """Return the launches of the reference's study that ended within the last hour and are not its own.

    None where a layout has too few of them for an interval, or they cannot be compared with the reference.
    """
    from harness.analysis.confidence_intervals import FEWEST_BLOCKS
    from harness.analysis.read_results import load_sweep
    from harness.analysis.sessions import SESSION_GAP
    from harness.regression.baselines import read_studies
    from harness.regression.measurement import measurements, without
    from harness.schema.sweep_folder import last_written, sweep_folders

    since = datetime.now(UTC) - SESSION_GAP
    oldest = (since - SESSION_GAP).timestamp()  # the clocks of hosts and of the file system differ
    recent_folders = [folder for folder in sweep_folders(judge.context.results) if last_written(folder) >= oldest]
    for folder, study in read_studies(recent_folders).readable:
        if (study.sweep.workload, study.sweep.data_id) != (reference.workload, reference.data_id):
            continue
        for measurement in measurements(load_sweep(folder), folder.name)[:1]:
            recent = tuple(launch for launch in without(measurement, reference).launches if launch.ended > since)
            judged = replace(measurement, launches=recent)
            if not judge.is_comparable(reference, judged):
                continue
            if all(len(judged.of(layout)) >= FEWEST_BLOCKS for layout in reference.layouts):
                echo(f"judged: '{folder.name}', whose last launch ended within the hour")
                return judged
    return None


def _measure(reference: "Measurement", judge: _Judge, until_sure: float | None, batch: BatchOptions) -> "Measurement":
    """Return the launches of a new session of the reference's study.

    Raises:
        UserError: the machine is another one, or the study cannot be launched here.
        RunError: no launch has valid times.
    """
    from harness.base.provenance import describe_machine
    from harness.regression.baselines import check_machine, new_check_folder
    from harness.regression.measurement import measured_in
    from harness.schema.sweep_folder import SweepFolder
    from harness.sweep.execute import run_sweep

    submission, _ = build_submission(batch)
    if submission.scheduler == "local" and not judge.other_machine:
        check_machine(reference, describe_machine(gpus=reference.machine.gpus))
    refuse_bad_mpi()
    context = judge.context
    sweep = _study(reference, submission, context.data_dir)
    folder = new_check_folder(context.results)
    context.say(
        f"'{reference.label}' is measured again, {_BLOCKS} launches of {len(sweep.layouts)} layouts each: {folder}"
    )
    enough = _until_sure(reference, judge, until_sure) if until_sure else None
    own_context = replace(context, results=folder)
    try:
        launched = run_sweep(sweep, own_context, submission, approve=approval(batch), enough=enough)
    except RunError as error:
        launched = folder / sweep.name
        if not SweepFolder(launched).has_records:
            raise
        echo(f"harness: {error}", err=True)
    return measured_in(launched, "now", None, contended_too=True)


def _study(reference: "Measurement", submission: "Submission", data_dir: Path | None) -> "Sweep":
    """Return the sweep that measures the study of `reference` again.

    Raises:
        UserError: the data is not that of the reference, or its launches cannot be started in the same way here.
    """
    from harness import datasets
    from harness.schema.sweep import Sweep

    if reference.in_turns != submission.in_turns:
        trained, mode = ("interleaved", "turns") if reference.in_turns else ("one by one", "jobs")
        raise UserError(f"the launches of '{reference.label}' trained {trained}: say {setting('mode', mode)}")
    data_id = datasets.locate(reference.workload, data_dir).data_id
    if data_id != reference.data_id:
        raise UserError(
            f"the data here is {data_id}, that of '{reference.label}' is {reference.data_id}: name the folder "
            f"with {setting('data_dir')}"
        )
    return Sweep(
        workload=reference.workload,
        layouts=reference.layouts,
        data_id=data_id,
        settings=reference.settings,
        scheduler=submission.scheduler,
        repeats=_BLOCKS,
        scaling=reference.scaling,
    )


def _until_sure(reference: "Measurement", judge: _Judge, minutes: float) -> Callable[[Path], int]:
    """Return what `run_sweep` asks after each part of a sweep: how many repeats there shall be."""
    begun = monotonic()

    def wanted_repeats(folder: Path) -> int:
        from harness.regression.measurement import measured_in
        from harness.regression.session_check import Verdict

        current = measured_in(folder, "now", None, contended_too=True)
        repeats = 1 + max(launch.repeat for launch in current.launches)
        check = judge.check(reference, current)
        more = next((look for look in _LOOKS if look > repeats), repeats)
        sure = check.verdict != Verdict.CANNOT_TELL or not check.blocks_would_decide
        late = (monotonic() - begun) * more > 60 * minutes * repeats
        echo(f"{check.verdict} after {repeats} blocks")
        return repeats if sure or late else more

    return wanted_repeats
