"""What an addition to the harness takes."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Addition:
    """What is added, the files that it touches, and the test (room/module:function) that adds one."""

    what: str
    files: str
    test: str


TABLE = (
    Addition(
        what="data set",
        files="its module in harness/datasets/known",
        test="whole/test_additions:test_a_data_set_is_one_module",
    ),
    Addition(
        what="network",
        files="a module of one's own, MODEL=package.module:function",
        test="whole/test_mpi_imagenet:test_a_step_does_not_depend_on_the_ranks",
    ),
    Addition(
        what="sync policy",
        files="a module of one's own, SYNC=package.module:Class",
        test="train/test_training:test_a_sync_policy_is_one_class_in_a_package_of_ones_own",
    ),
    Addition(
        what="scheduler",
        files="its module in harness/sweep/schedulers and its template",
        test="sweep/test_scheduler_additions:test_a_scheduler_is_one_module_and_a_template",
    ),
    Addition(
        what="site",
        files="a TOML file in jobs/sites",
        test="sweep/test_scheduler_additions:test_a_scheduler_is_one_module_and_a_template",
    ),
    Addition(
        what="optimizer",
        files="a module of one's own, OPTIMIZER=package.module:function",
        test="schema/test_own_code:test_an_optimizer_is_one_file_and_part_of_what_would_run",
    ),
    Addition(
        what="training option",
        files="a field of harness/schema/workload.py",
        test="schema/test_option:test_it_is_checked_and_reaches_the_record",
    ),
    Addition(
        what="figure",
        files="its module in harness/report/figures",
        test="report/test_figures:test_a_figure_is_one_file",
    ),
)
