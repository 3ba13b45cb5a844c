"""A short document as Markdown and as LaTeX: headings, paragraphs, lists, tables and commands. Nothing is empty."""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """A heading of `level` 1 to 3."""

    level: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Items:
    """A list of sentences."""

    texts: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShellLines:
    """Lines for a shell."""

    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A table of texts. `widths` are parts of the line, equal ones if not given."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    widths: Sequence[float] = ()


Block = Heading | Items | ShellLines | Grid | str
"""A text is a paragraph."""


def markdown(blocks: Sequence[Block]) -> str:
    """Return the document as Markdown."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {_plain(block.text)}"
        case Items():
            return "\n".join(f"- {_plain(text)}" for text in block.texts)
        case ShellLines():
            return "\n".join(["```sh", *block.lines, "```"])
        case Grid():
            rows = [block.headings, ["---"] * len(block.headings), *block.rows]
            return "\n".join("| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)
        case str():
            return _plain(block)


def _plain(text: str) -> str:
    text = " ".join(text.split())  # a line break would end a table's row; also makes blanks ordinary
    assert text, "a field of the appendix is empty"
    return re.sub(r"([<*_])", r"\\\1", text)


_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "µ": r"\textmu{}", "×": r"$\times$", "±": r"$\pm$", "≤": r"$\leq$", "…": r"\ldots{}",
}  # fmt: skip
_SECTIONS = ("section", "subsection", "subsubsection")
_PREAMBLE = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage[margin=25mm]{geometry}
\usepackage{array,listings,longtable,textcomp}
\lstset{basicstyle=\ttfamily\small,breaklines=true,columns=fullflexible,keepspaces=true}
\setlength{\parindent}{0pt}\setlength{\parskip}{6pt}
\sloppy
\begin{document}
"""


def latex(blocks: Sequence[Block]) -> str:
    """Return the document as LaTeX that needs nothing but what every distribution has."""
    return _PREAMBLE + "\n\n".join(map(_latex, blocks)) + "\n\\end{document}\n"


def _latex(block: Block) -> str:
    match block:
        case Heading():
            return rf"\{_SECTIONS[block.level - 1]}*{{\raggedright {tex(block.text)}}}"
        case Items():
            return "\n".join([r"\begin{itemize}", *(rf"\item {tex(text)}" for text in block.texts), r"\end{itemize}"])
        case ShellLines():
            return "\n".join([r"\begin{lstlisting}", *block.lines, r"\end{lstlisting}"])
        case Grid():
            return _table(block)
        case str():
            return tex(block)


def _table(grid: Grid) -> str:
    widths = grid.widths or [1 / len(grid.headings)] * len(grid.headings)
    columns = "".join(rf">{{\raggedright\arraybackslash}}p{{{0.88 * width:.3f}\linewidth}}" for width in widths)
    rows = [" & ".join(map(tex, row)) + r" \\" for row in grid.rows]
    head = " & ".join(rf"\textbf{{{tex(cell)}}}" for cell in grid.headings)
    begin = [rf"\begin{{longtable}}{{{columns}}}", r"\hline", head + r" \\", r"\hline", r"\endhead"]
    return "\n".join([*begin, *rows, r"\hline", r"\end{longtable}"])


def tex(text: str) -> str:
    """Return `text` for LaTeX, every sign of its own meaning escaped."""
    text = " ".join(text.split())
    assert text, "a field of the appendix is empty"
    return "".join(_TEX.get(sign, sign) for sign in text)
