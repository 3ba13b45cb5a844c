"""Numbers as people and spreadsheets write them: decimal mark, thousands marks, currency and percent signs."""

import functools
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

POINT, COMMA = ".", ","
_BLANKS = "\u00a0\u202f\u2009 "  # non-breaking, narrow and thin blanks, which spreadsheets put between thousands
_GROUPING = f"'\u2019{_BLANKS}"
_CODES = "USD|EUR|GBP|JPY|CHF|CNY|INR|CAD|AUD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|BRL|MXN|ZAR|TRY|KRW|RUB"
_MISSING_WORDS = ("", "?", "-", "--", ".", "na", "n/a", "n.a.", "<na>", "nan", "-nan", "null", "nil", "none", "missing")
_MISSING_IN_EXCEL = ("#n/a", "#na", "#n/a n/a", "#value!", "#div/0!", "#ref!", "#num!", "#null!")
_MISSING_IN_C = ("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan")
_MISSING = frozenset((*_MISSING_WORDS, *_MISSING_IN_EXCEL, *_MISSING_IN_C))


def is_missing_number(cell: str) -> bool:
    """Return whether a cell of a column of numbers stands for a missing one, in any of the spellings in use."""
    return cell.strip().lower() in _MISSING


def missing_spellings() -> tuple[str, ...]:
    """Return every spelling of a missing number, in the cases in which they are written."""
    cases = {spelling for word in _MISSING for spelling in (word, word.upper(), word.capitalize())}
    return tuple(sorted(cases | {"NaN", "-NaN"}))


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberForm:
    """How the numbers of a column are written: `decimal` is ``.`` or ``,``; `unit` a currency, ``%`` or empty."""

    decimal: str = POINT
    unit: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadNumber:
    """A number and the unit that it was written with."""

    value: float
    unit: str


@functools.cache
def _currencies() -> str:
    signs = (chr(code) for code in range(0x10000) if unicodedata.category(chr(code)) == "Sc")
    return f"(?:[A-Z]{{0,3}}[{re.escape(''.join(signs))}]|{_CODES}|kr|z\u0142)"


def _pattern(digits: str) -> str:
    """Return the pattern of a number with sign and unit around `digits`; in parentheses it is negative."""
    currency = _currencies()
    blank = f"[{_BLANKS}]*"
    sign = "[+\\-\u2212]"
    return (
        rf"(?P<open>\()?(?P<sign>{sign})?{blank}(?P<before>{currency})?{blank}(?P<late>{sign})?"
        rf"(?P<digits>{digits}){blank}(?P<after>{currency}|%)?(?P<close>\))?"
    )


@functools.cache
def _strict(decimal: str) -> re.Pattern[str]:
    """Return the pattern of numbers with this decimal mark, whose thousands are whole groups of three."""
    grouping = re.escape(_GROUPING + (POINT if decimal == COMMA else COMMA))
    mark = re.escape(decimal)
    grouped = rf"[1-9]\d{{0,2}}(?P<group>[{grouping}])\d{{3}}(?:(?P=group)\d{{3}})*(?:{mark}\d*)?"
    plain = rf"(?:\d+(?:{mark}\d*)?|{mark}\d+)(?:[eE][+-]?\d+)?"
    return re.compile(_pattern(rf"{grouped}|{plain}"), re.ASCII)


@functools.cache
def _loose() -> re.Pattern[str]:
    return re.compile(_pattern(rf"[\d.,{re.escape(_GROUPING)}]*\d[.,]?(?:[eE][+-]?\d+)?"), re.ASCII)


def read_number(text: str, decimal: str) -> ReadNumber | None:
    """Return the number that `text` is, None if it is none with this decimal mark or its thousands are torn."""
    match = _strict(decimal).fullmatch(text.strip())
    if match is None or bool(match["open"]) != bool(match["close"]):
        return None
    signs = [sign for sign in (match["sign"], match["late"]) if sign]
    units = [unit for unit in (match["before"], match["after"]) if unit]
    if len(signs) + bool(match["open"]) > 1 or len(units) > 1:
        return None
    digits = match["digits"]
    if match["group"]:
        digits = digits.replace(match["group"], "")
    value = float(digits.replace(decimal, POINT))
    negative = bool(match["open"]) or bool(signs and signs[0] != "+")
    return ReadNumber(value=-value if negative else value, unit=units[0] if units else "")


def is_plain_number(text: str, decimal: str) -> bool:
    """Return whether `text` is a number without thousands marks and units, as a CSV parser reads it; infinity is."""
    text = text.strip()
    if decimal == COMMA:
        if POINT in text:
            return False
        text = text.replace(COMMA, POINT)
    try:
        return float(text) == float(text) and "_" not in text and text.isascii()
    except ValueError:
        return False


def is_number_like(text: str) -> bool:
    """Return whether `text` is a number under either decimal mark."""
    return any(is_plain_number(text, mark) or read_number(text, mark) is not None for mark in (POINT, COMMA))


_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]m)?"
_DATE = re.compile(
    rf"(?:(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}([-/.])\d{{1,2}}\1(?:\d{{4}}|\d{{2}})"
    rf"|\d{{1,2}}[- ./]?{_MONTH}[- ./,]*\d{{2,4}}|{_MONTH}[- ./]*\d{{1,2}}[,. ]+\d{{4}}"
    rf"|\d{{4}}[- ]{_MONTH}[- ]\d{{1,2}}|\d{{4}}-\d{{2}})(?:[T ]+{_TIME}(?:Z|\s?[+-]\d{{2}}:?\d{{2}})?)?|{_TIME})",
    re.ASCII | re.IGNORECASE,
)


def is_date(text: str) -> bool:
    """Return whether `text` is a date, a time of day, or both, in one of the usual ways to write them."""
    return _DATE.fullmatch(text.strip()) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkEvidence:
    """What the cells of a file say about its marks ``.`` and ``,``: for each a cell, or none.

    `proofs` are cells that can be read with this decimal mark alone. `open_marks` are cells such as ``1,234``, in
    which the mark may stand between thousands or before decimals. `mixed_marks` are those of a column that has whole
    numbers below 1,000 too; `grouped_marks` those that no program prints so if they were decimals: ``2,500`` keeps its
    zeros, and ``2`` has none.
    """

    proofs: dict[str, str] = field(default_factory=dict)
    open_marks: dict[str, str] = field(default_factory=dict)
    mixed_marks: dict[str, str] = field(default_factory=dict)
    grouped_marks: dict[str, str] = field(default_factory=dict)


def find_marks(columns: Iterable[Iterable[str]]) -> MarkEvidence:
    """Return the evidence of columns of cells; columns that hold other things than numbers have no say."""
    evidence = MarkEvidence()
    for cells in columns:
        texts = [cell for cell in dict.fromkeys(map(str.strip, cells)) if not is_missing_number(cell)]
        bodies = {text: body for text in texts if (body := _body(text)) is not None}
        if 2 * len(bodies) <= len(texts):
            continue
        _find_column_marks(bodies, evidence)
    return evidence


def _body(text: str) -> str | None:
    """Return the digits and marks of a number-like text without sign and unit, None of any other text."""
    if is_date(text):
        return None
    match = _loose().fullmatch(text)
    return match["digits"] if match else None


def _find_column_marks(bodies: dict[str, str], evidence: MarkEvidence) -> None:
    """Add what the cells of one column prove or leave open; `bodies` are their digits by their texts."""
    whole = [body for body in bodies.values() if body.isdigit()]
    small = bool(whole) and all(len(body) <= 3 for body in whole)
    for mark, thousands_mark in ((COMMA, POINT), (POINT, COMMA)):
        undecided = {}
        proven = False
        for text, body in bodies.items():
            if mark not in body:
                continue
            as_decimal = _strict(mark).fullmatch(body) is not None
            as_thousands = _strict(thousands_mark).fullmatch(body) is not None
            if as_decimal and as_thousands:
                undecided[text] = body
            elif as_decimal or as_thousands:
                evidence.proofs.setdefault(mark if as_decimal else thousands_mark, text)
                proven = True
        if not undecided:
            continue
        cell = next(iter(undecided))
        evidence.open_marks.setdefault(mark, cell)
        if small and not proven:
            evidence.mixed_marks.setdefault(mark, cell)
            if any(body.endswith("0") for body in undecided.values()):
                evidence.grouped_marks.setdefault(mark, cell)
