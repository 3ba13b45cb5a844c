"""What the page of a bench says."""

from dataclasses import replace
from pathlib import Path

from harness.bench.bench_record import (
    RECORD,
    read_bench,
)
from harness.bench.contenders import CONTENDERS
from harness.report.answer import Table
from harness.report.bench_answer import TEXT, bench_answer
from harness.report.html_pages import write_page
from tests.labs.bench_records import bench_block, bench_record
from tests.labs.sentences import says


def test_page_table_and_record_are_written(tmp_path: Path) -> None:
    made = [
        replace(
            bench_block(number, bare=(1.0, 1.1), bound=(1.5, 1.6), gradients=(2.0, 2.1), none=(1.05, 1.1)),
            losses={"bare": 0.25},
            failed={"mwms": "RuntimeError: a | b"},
            details={"Horovod, 2 ranks": "Horovod 0.28.1"},
        )
        for number in range(3)
    ]
    answer = bench_answer(bench_record(*made))
    folder = write_page(answer, tmp_path).page.parent
    page = (folder / TEXT).read_text()
    says((folder / "index.html").read_text(), "How fast")
    says(answer.sentence, "harness gradients", "2 ranks", "0.756", "(0.75")
    assert answer.sentence.startswith("mnist-dnn: ")
    assert read_bench(folder / RECORD).blocks == tuple(made)
    for words in ("0.756 NO (0.756 to 0.756)", "failed", "0.2500", "RuntimeError: a \\| b", "Horovod 0.28.1"):
        assert words in page.replace("RuntimeError: a | b", "RuntimeError: a \\| b"), words
    ratio = answer.data["workloads"][0].ratios["gradients"]["bound"]
    assert (ratio.blocks, ratio.met) == (3, False)


def test_chosen_contenders_have_only_tables_and_headlines_of_their_own() -> None:
    """A bench of some contenders has no empty table, and its first sentence compares those that it has."""
    made = [bench_block(number, bare=(1.0, 1.1), run=(1.25, 1.375)) for number in range(3)]
    answer = bench_answer(bench_record(*made, contenders=("bare", "run")))
    assert [(fact.name, fact.value) for fact in answer.tiles] == [
        (f"{CONTENDERS['run'].title} over a bare loop", "0.800")
    ]
    tables = [element for section in answer.sections for element in section.elements if isinstance(element, Table)]
    assert tables and all(table.rows for table in tables)
