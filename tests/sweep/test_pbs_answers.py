"""qstat's answers as they are: JSON, JSON with texts that look like numbers, and the text form."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from harness.sweep.pbs_answers import (
    quote_bare_texts,
    read_pbs_nodes,
    read_pbs_usage,
    read_state,
    read_table,
    read_text_table,
)
from harness.sweep.submission_errors import UnreadableAnswer

HISTORY = (Path(__file__).parents[1] / "data/pbs/qstat_history.json").read_text()
JOB = '{"Jobs": {"1.head": {"Job_Name": "a", "job_state": "F", "Exit_status": 1, "Variable_List": {%s}}}}'


@pytest.mark.parametrize(
    ("variables", "name", "text"),
    [
        ('"PBS_O_LOGNAME":007123,"PART":.5', "PBS_O_LOGNAME", "007123"),
        ('"PART":.5', "PART", ".5"),
        ('"A":5.,"B":"x"', "A", "5."),
        ('"A":+1', "A", "+1"),
        ('"A":0x1F,"B":1', "A", "0x1F"),
        ('"A":1e5x', "A", "1e5x"),
        ('"A":NaN', "A", "NaN"),
        ('"A":inf', "A", "inf"),
        ('"A":-Infinity', "A", "-Infinity"),
        ('"A":-', "A", "-"),
        ('"A":007,"B":"a, 008: {\\"x\\"} [009]"', "B", 'a, 008: {"x"} [009]'),
    ],
)
def test_texts_without_quotes_are_texts(variables: str, name: str, text: str) -> None:
    job = read_table(quote_bare_texts(JOB % variables), "Jobs")["1.head"]
    assert job["Variable_List"][name] == text
    assert (read_state(job).phase, read_state(job).exit_code) == ("ended", 1)


@pytest.mark.parametrize("variables", ["", '"A":1', '"A":-1.5e3', '"A":true,"B":null', '"A":"007"', '"A":[1,2]'])
def test_what_is_json_stays_as_it_is(variables: str) -> None:
    assert read_table(quote_bare_texts(JOB % variables), "Jobs") == read_table(JOB % variables, "Jobs")


@pytest.mark.parametrize(
    "answer",
    [
        '{"Jobs": {',
        '{"Jobs": {"1.head": {"comment": "she said "no""}}}',
        '{"Jobs": []}',
        '{"Jobs": {"1.head": "gone"}}',
        "qstat: something else",
        '["Jobs"]',
    ],
)
def test_what_is_damaged_otherwise_is_not_repaired(answer: str) -> None:
    with pytest.raises(UnreadableAnswer):
        read_table(quote_bare_texts(answer), "Jobs")


def as_text(jobs: dict[str, dict[str, Any]]) -> str:
    """Return jobs as ``qstat -f`` prints them: long lines go on behind a tab."""
    lines = []
    for name, job in jobs.items():
        lines.append(f"Job Id: {name}")
        for key, value in job.items():
            entries = {f"{key}.{part}": text for part, text in value.items()} if isinstance(value, dict) else {}
            if key == "Variable_List":
                entries = {key: ",".join(f"{part}={text}" for part, text in value.items())}
            for entry, text in (entries or {key: value}).items():
                wrapped = textwrap.wrap(f"{entry} = {text}", 74, break_on_hyphens=False, drop_whitespace=False)
                lines += [f"    {wrapped[0]}", *(f"\t{part}" for part in wrapped[1:])]
        lines.append("")
    return "\n".join(lines)


def test_the_text_form_says_the_same_as_the_json() -> None:
    jobs = read_table(HISTORY, "Jobs")
    table = read_text_table(as_text(jobs))
    assert table.keys() == jobs.keys()
    assert len(jobs) > 5
    for name, job in jobs.items():
        assert read_state(table[name]) == read_state(job), name
        assert read_pbs_usage(table[name]) == read_pbs_usage(job), name
        assert table[name]["Job_Name"] == job["Job_Name"]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("Job Id: 7.head\n    job_state = Q\n    substate = 10\n", "queued"),
        ("Job Id: 7.head\n    job_state = R\n    exec_host = n1/0*2+n2/0\n\t*2\n", "running"),
        ("Job Id: 7.head\n    Variable_List = A=1,\n\tB=\n  odd\n    job_state = F\n    Exit_status = 0\n", "ended"),
        ("a banner of the site\nJob Id: 7.head\n    job_state = F\n    Exit_status = -29\n", "ended"),
        ("Job Id: 7.head\n    Job_Name = 007\n    comment = job_state = R\n    job_state = H\n", "queued"),
    ],
)
def test_text_forms_of_every_kind(text: str, state: str) -> None:
    assert read_state(read_text_table(text)["7.head"]).phase == state


@pytest.mark.parametrize("text", ["qstat", "<html>", "Job Id: 7.head\n    Exit_status = none\n", "{}", "7.head a b"])
def test_a_text_that_is_none_is_not_read(text: str) -> None:
    with pytest.raises(UnreadableAnswer):
        read_text_table(text)


def test_no_job_is_an_answer() -> None:
    assert read_text_table("") == read_table("", "Jobs") == {}


def test_nodes_whose_json_is_none_are_not_known() -> None:
    with pytest.raises(UnreadableAnswer):
        read_pbs_nodes("pbsnodes: Server has no node list")
    bare = json.dumps({"nodes": {"n1": {"state": "free", "resources_available": {"ncpus": 2}}}})
    assert read_pbs_nodes(quote_bare_texts(bare.replace('"free"', '"free", "comment": 007')))[0] is not None
