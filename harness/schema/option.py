"""A setting is one field: its option, help, values and place in records follow from it. Values may name users' code."""

import math
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from harness.base.errors import UserError, unknown

# The headings under which help shows the options of a command, in this order.
WHAT = "What is trained"
HOW = "How it is trained"
SPREAD = "How it is spread over ranks"
WHERE = "Where it runs"
WRITTEN = "What is written"
GROUPS = (WHAT, HOW, SPREAD, WHERE, WRITTEN)

_FORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)  # package.module:name


def is_own_code(text: str) -> bool:
    """Return whether a setting's `text` names a user's own code; nothing is imported.

    A SYNC may name a policy of the harness in the same form: `sync_policies.is_own_policy`.
    """
    return _FORM.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """How users set a field.

    `help` is one sentence. `name` is the option's where it is not the field's. `choices` are all values that there
    are, besides ``package.module:name`` where it may be a user's (`own_code`); `least` is the smallest and `above` what
    a number must be more than, `most` is the largest. `values` says in help what to write where `choices` do not.
    `title` stands before the value in a report; an empty one is the field's name. `listed` is False where a report
    shows the field in another way; `when` names a field and the value of it with which alone this one counts.
    `words`: free text on one line. `group` is its heading in help where it is not that of the other fields, `common`
    options come first below it. `opposite` switches a flag off where it is not ``no-`` and its name.
    """

    help: str
    name: str = ""
    choices: tuple[str, ...] = ()
    own_code: bool = False
    values: str = ""
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    title: str = ""
    listed: bool = True
    when: tuple[str, str] | None = None
    words: bool = False
    group: str = ""
    common: bool = False
    opposite: str = ""

    @property
    def metavar(self) -> str:
        """The values in one word, None of them known: empty."""
        forms = (*self.choices, "package.module:function") if self.own_code else self.choices
        return self.values or "|".join(forms)

    def check(self, name: str, value: object) -> None:
        """Check the value of the field `name`; None is a value that was left open.

        Raises:
            UserError: it is none of the choices, out of its range, or not finite.
        """
        is_choice = value is None or value in self.choices or (self.own_code and is_own_code(str(value)))
        if self.choices and not is_choice:
            raise unknown(name, str(value), self.choices)
        words = name.replace("_", " ")
        if self.words and value is not None and not (str(value).strip() and str(value).isprintable()):
            raise UserError(f"{words} {value!r} is not a line of text: write words, without line breaks")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return
        if not math.isfinite(value):
            raise UserError(f"{words} {value} is not a finite number")
        if value < self.least:
            raise UserError(f"{words} {value} is too small: use at least {self.least:g}")
        if value <= self.above:
            raise UserError(f"{words} {value} is too small: use more than {self.above:g}")
        if value > self.most:
            raise UserError(f"{words} {value} is too large: use at most {self.most:g}")


def option(text: str, default: Any = MISSING, *, counts: bool = True, **facts: Any) -> Any:
    """Return the field of a dataclass that users set; `text` is its help, `facts` are those of `Option`.

    One that does not count is no part of the identity: values that differ in it alone are equal.
    """
    return field(default=default, compare=counts, metadata={"option": Option(help=text, **facts)})


def options(kind: Any) -> Iterator[tuple[Field[Any], Option]]:
    """Yield the fields of a dataclass, or of an instance, that users set."""
    for setting in fields(kind):
        if "option" in setting.metadata:
            yield setting, setting.metadata["option"]


def check_options(value: Any) -> None:
    """Check every such field of an instance; raise a UserError if one is out of its range."""
    for setting, asked in options(value):
        asked.check(setting.name, getattr(value, setting.name))
