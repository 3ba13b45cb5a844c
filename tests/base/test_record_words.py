"""Texts of records as paths, words of commands and lines to paste."""

import json
import shlex
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import UserError
from harness.base.record_words import (
    HOST,
    JOB,
    LINE,
    NAME,
    TEXT,
    VALUE,
    VARIABLE,
    Form,
    below,
    check_text,
    make_word,
    printable,
    printable_line,
    shell_line,
)
from tests.labs.sentences import refuses

HOSTILE = ("$(touch owned)", "`id`", "a'b", 'a"b', "a b", "a;b", "$$", "${x}", "a\\b", "*", "-n", "#x", "~")


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (NAME, ["default", "paper-2016-03", "b0", "_x.1"], ["", ".x", "..", "-x", "a/b", "a b", "a\n", "ä", "x" * 201]),
        (HOST, ["node1", "n1.cluster.example", "fe80::1%eth0"], ["", "-x", "a b", "a;b", "$(id)", "a\n"]),
        (JOB, ["123", "7[2].head", "7[].head", "1_2"], ["", "--user=me", "1 2", "1,2;"]),
        (TEXT, ["a b", "-1", "it's"], ["", "a\nb", "\x1b[2J", "a\u2028b", "\udc80", "a\x9b"]),
        (LINE, ["/data/my files", "~/x"], ["", "-x", "a\nb", "a\0"]),
        (
            VARIABLE,
            ["HARNESS_REDUCTION", "OMPI_MCA_btl", "OMPI_MCA_coll_tuned_use_dynamic_rules", "OMPI_MCA_pml"],
            [
                *("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PATH", "BASH_ENV", "DYLD_PRELOAD", "TF_XLA_FLAGS"),
                *("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_mca_base_component_path", "OMPI_MCA_orte_launch_agent"),
                *(
                    "OMPI_MCA_mpi_show_mca_params_file",
                    "OMPI_MCA_coll_tuned_dynamic_rules_filename",
                    "OMPI_MCA_",
                    "X;id",
                ),
            ],
        ),
        (VALUE, ["", "^tcp,sm", "10.0.0.0/8", "3"], ["a b", "$(id)", "a;b", "a\nb", "'"]),
    ],
)
def test_forms(form: Form, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not form.fits(text)] == []
    assert [text for text in bad if form.fits(text)] == []


def test_a_refusal_names_field_value_and_what_to_use() -> None:
    with refuses("is not allowed: use", "preset", "'a/b'", NAME.words):
        check_text("preset", "a/b")
    check_text("block", "", optional=True)


@given(st.text())
def test_a_name_leads_below_its_parent_or_nowhere(name: str) -> None:
    parent = Path("/results")
    try:
        path = below(parent, name)
    except UserError:
        return
    steps = Path(*path.parts[2:]).parts
    assert path.is_relative_to(parent) and path != parent
    assert ".." not in steps


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), min_size=1))
def test_a_line_gives_its_words_again(words: list[str]) -> None:
    assert shlex.split(shell_line(words)) == words


@pytest.mark.parametrize("text", HOSTILE)
def test_a_word_for_make_comes_through_a_shell_and_make_as_it_is(text: str, tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make here")
    (tmp_path / "Makefile").write_text("export VALUE\nall: ; @printenv VALUE\n")
    line = f"{make} -s {make_word('VALUE', text)}"
    answer = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert answer.stdout == f"{text}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]


# Text of strangers has nothing in it that steers a terminal, and says the same in JSON.

BAD = "node\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\r\x7f\u202egnp.exe\ud800"


def is_steering(sign: str) -> bool:
    direction = unicodedata.bidirectional(sign)
    is_turned = direction in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return sign not in "\t\n" and (unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") or is_turned)


@given(st.text(st.characters()))
def test_no_sign_that_steers_is_left(text: str) -> None:
    assert not any(map(is_steering, printable(text)))
    assert printable(printable(text)) == printable(text)


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"))))
def test_other_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_tabs_and_lines_stay_and_what_steers_is_shown() -> None:
    assert printable("a\tb\nc\r\nd") == "a\tb\nc\nd"
    assert printable(BAD).startswith("node\\u001b]52;c;ZXZpbA==\\u0007") and "\\u202e" in printable(BAD)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_json_means_the_same_afterwards(text: str) -> None:
    assert json.loads(printable(json.dumps({"a": text}, ensure_ascii=False))) == {"a": text}


@given(st.text(), st.integers(1, 20))
def test_a_line_is_one_and_no_longer(text: str, longest: int) -> None:
    line = printable_line(text, longest)
    assert len(line) <= longest and "\n" not in line and "\t" not in line
