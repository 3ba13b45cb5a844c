"""The appendix as LaTeX, in the parts and by the names of the macros of SC's reproducibility appendices.

The text calls ``\\appendixAD``, ``\\newartifact``, ``\\artrel`` and so on. Each has a plain definition before the text,
which a class or style of the venue that defines them replaces, so that the file compiles by itself too.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.analysis import units
from harness.analysis.launch_frames import launch_frame
from harness.base.record_words import shell_line
from harness.bundle.bundled_sweep import EVALUATION_HOURS, BundledSweep, evaluation_seconds, execution_seconds, smoke
from harness.bundle.source_code import LOCK, BundledCode
from harness.report.answer import Fact
from harness.report.sweep_facts import data_facts, machine_facts, workload_facts

_SIGNS = {
    "\\": r"\textbackslash{}",
    "-": "-{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\u00a0": "~",
    "\u2013": "--",
    "\u2212": "$-$",
    "\u00d7": r"$\times$",
    "\u00b1": r"$\pm$",
    "\u03b1": r"$\alpha$",
    "\u03b2": r"$\beta$",
}
_LONG = 16  # characters of a word that may be broken from there
_MACROS = r"""\documentclass[10pt,twocolumn]{article}
\usepackage[a4paper,margin=18mm]{geometry}
\usepackage{tabularx}
\newcounter{artifact}
\providecommand{\appendixAD}{\section*{Appendix: Artifact Description}}
\providecommand{\appendixAE}{\section*{Appendix: Artifact Evaluation}}
\providecommand{\newartifact}{\stepcounter{artifact}\subsection*{Computational Artifact $A_{\theartifact}$}}
\providecommand{\arteval}[1]{\subsection*{Computational Artifact $A_{#1}$}}
\providecommand{\artrel}{\paragraph{Relation to contributions}}
\providecommand{\artexp}{\paragraph{Expected results}}
\providecommand{\arttime}{\paragraph{Expected reproduction time (minutes)}}
\providecommand{\artin}{\paragraph{Artifact setup}}
\providecommand{\artinpart}[1]{\par\noindent\emph{#1.} }
\providecommand{\artcomp}{\paragraph{Artifact execution}}
\providecommand{\artout}{\paragraph{Artifact analysis}}
\sloppy
\begin{document}
"""


def latex_text(text: str) -> str:
    """Return `text` for LaTeX, in one line; signs that its plain fonts lack become a question mark.

    Long words, such as hashes, may be broken.
    """
    words = [_word(word) for word in re.split(r"[ \t\r\n]+", text)]
    return " ".join(words)


def _word(word: str) -> str:
    written = [_SIGNS.get(sign, sign if sign.isascii() else "?") for sign in word]
    if len(word) > _LONG:
        for place in range(_LONG, len(written), 4):
            written[place] = rf"\allowbreak{{}}{written[place]}"
    return "".join(written)


def evaluation_sentence(seconds: float) -> str:
    """Return the sentence on how long everything took as recorded, and whether an evaluation has the hours for it."""
    took = f"Everything again took {_minutes(seconds)} minutes as recorded"
    if seconds <= 3600 * EVALUATION_HOURS:
        return f"{took}: it fits the {EVALUATION_HOURS} hours of an evaluation."
    return (
        f"{took}: more than the {EVALUATION_HOURS} hours of an evaluation, for which there is the minimum viable scale."
    )


def minimum_command(sweep: BundledSweep) -> str:
    """Return the command that repeats `sweep` at the minimum viable scale: what fits the evaluator's machine."""
    return shell_line(["harness", "reproduce", f"results/{sweep.name}", "--here"])


def setup_commands(name: str, code: BundledCode) -> list[str]:
    """Return the commands that unpack the archive `name` and install the software in it."""
    return [
        shell_line(["tar", "xzf", name]),
        shell_line(["cd", name.removesuffix(".tar.gz")]),
        "python3 -m venv .venv",
        ". .venv/bin/activate",
        f"pip install --no-deps --require-hashes -r {LOCK}",
        *code.commands,
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class LatexAppendix:
    """The appendix of the bundle `name` (its file), which has `sweeps` and `code`."""

    name: str
    sweeps: Sequence[BundledSweep]
    code: BundledCode

    def text(self, *, evaluation: bool) -> str:
        """Return the description, and with `evaluation` that part too."""
        parts = [_MACROS, r"\appendixAD", *self._overview(), r"\section*{Artifact Identification}"]
        for number, sweep in enumerate(self.sweeps, 1):
            parts += self._description(number, sweep)
        if evaluation:
            _, minutes = smoke(self.sweeps)
            whole = evaluation_sentence(evaluation_seconds(self.sweeps))
            fits = [
                latex_text(f"{whole} The short variant takes {_minutes(60 * minutes)} minutes."),
                r"\paragraph{Minimum viable scale}",
                "Of each sweep one launch of every layout for which the machine has cores:",
                _commands([minimum_command(sweep) for sweep in self.sweeps]),
            ]
            parts += [r"\appendixAE", *fits]
            for number, sweep in enumerate(self.sweeps, 1):
                parts += [
                    rf"\arteval{{{number}}}",
                    r"\artin",
                    _commands(setup_commands(self.name, self.code)) if number == 1 else "As for $A_1$.",
                    r"\artcomp",
                    _commands(sweep.command.splitlines()),
                    r"\artout",
                    _commands(
                        [
                            shell_line(["harness", "report", sweep.name]),
                            shell_line(["harness", "bundle", "redraw", f"../{self.name}"]),
                        ]
                    ),
                ]
        parts.append(r"\end{document}")
        return "\n".join(parts) + "\n"

    def _overview(self) -> list[str]:
        contributions = []
        rows = []
        for number, sweep in enumerate(self.sweeps, 1):
            contributions.append(rf"\item[$C_{{{number}}}$] {latex_text(sweep.answer)}")
            figures = ", ".join(name.rpartition("/")[2] for name in sweep.figures) or "none"
            rows.append((f"$A_{{{number}}}$", f"$C_{{{number}}}$", latex_text(figures)))
        return [
            r"\section*{Overview of Contributions and Artifacts}",
            r"\subsection*{Paper's Main Contributions}",
            r"\begin{description}",
            *contributions,
            r"\end{description}",
            r"\subsection*{Computational Artifacts}",
            _table("llX", ("Artifact", "Contribution", "Figures"), rows),
        ]

    def _description(self, number: int, sweep: BundledSweep) -> list[str]:
        runs = sweep.runs
        launches = launch_frame(sweep.loaded.runs, sweep.loaded.epochs)
        launched = units.plural(len(sweep.loaded.runs), "launch")
        setup = "not measured" if self.code.setup_s is None else _minutes(self.code.setup_s)
        times = [
            ("T1: set-up", "none", setup),
            (latex_text(f"T2: {launched}"), "T1", _minutes(execution_seconds(sweep.loaded.runs))),
            ("T3: analysis", "T2", _minutes(sweep.analysis_s)),
        ]
        return [
            r"\newartifact",
            r"\artrel",
            latex_text(f"The sweep {sweep.name}: {launched}, {len(sweep.loaded.valid)} of them with valid times."),
            r"\artexp",
            latex_text(sweep.answer),
            *(latex_text(limit) for limit in sweep.limits),
            r"\arttime",
            _table("Xll", ("Task", "Depends on", "Minutes"), times),
            r"\artin",
            r"\artinpart{Hardware and software}",
            _facts(machine_facts(runs)),
            r"\artinpart{Datasets / Inputs}",
            _facts([*data_facts(runs, launches), *workload_facts(runs[0].point.workload, runs)]),
            r"\artcomp",
            "T1 is the set-up of the software, T2 launches the sweep, T3 draws its report: each needs the one before.",
            r"\artout",
            latex_text(f"harness report {sweep.name} draws {units.plural(len(sweep.figures), 'figure')} and the page."),
        ]


def _table(columns: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as wide as the column; the cells are LaTeX."""
    lines = [" & ".join(cells) + r" \\" for cells in rows]
    wrapped = columns.replace("X", r">{\raggedright\arraybackslash}X")
    head = " & ".join(headings) + r" \\ \hline"
    body = "\n".join([head, *lines])
    begin = rf"\par\smallskip\noindent\begin{{tabularx}}{{\linewidth}}{{{wrapped}}}"
    return "\n".join([begin, body, r"\end{tabularx}\par\smallskip"])


def _facts(facts: Sequence[Fact]) -> str:
    lines = [f"{latex_text(fact.name)}: {latex_text(fact.value)}." for fact in facts]
    return "\n".join(lines)


def _commands(lines: Sequence[str]) -> str:
    """Return commands as lines of their own that may be broken at blanks."""
    items = [rf"\item[] \texttt{{{latex_text(line)}}}" for line in lines]
    return "\n".join([r"\begin{list}{}{\leftmargin=1em\itemsep=0pt\raggedright}", *items, r"\end{list}"])


def _minutes(seconds: float) -> str:
    value = seconds / 60
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"
