"""Settings in words: every place that names a setting or its value to a reader takes the words from here."""

import shlex
from collections.abc import Sequence
from typing import Any

from harness.schema.option import Option, options
from harness.schema.presets import changed_settings
from harness.schema.sweep import Sweep
from harness.schema.workload import Workload


def value_words(value: object) -> str:
    """Return a setting's value in words."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def title_words(name: str, asked: Option) -> str:
    """Return what the setting of the field `name` is called at the head of a line."""
    return asked.title or name.replace("_", " ").capitalize()


def conditions(settings: Any) -> list[tuple[str, str]]:
    """Return title and value of every listed setting that says something: not None, False, "none" or 0.0.

    One that counts only with the value of another field is left out where that field has another value.
    """
    lines: list[tuple[str, str]] = []
    for field, asked in options(settings):
        value = getattr(settings, field.name)
        applies = asked.when is None or getattr(settings, asked.when[0]) == asked.when[1]
        if asked.listed and applies and _says_something(value):
            lines.append((title_words(field.name, asked), value_words(value)))
    return lines


def _says_something(value: object) -> bool:
    if value is None or value is False or value == "none":
        return False
    return not isinstance(value, float) or value != 0.0


def study_name(sweep: Sweep) -> str:
    """Return what is studied with every setting that is not its preset's: ``MNIST-DNN, synchronisation none``."""
    workload = sweep.workload
    parts = [workload.name.upper() if workload.has_known_data else workload.name]
    if workload.script:
        parts += [shlex.join(workload.script.arguments), "" if workload.sync == "gradients" else workload.sync]
    else:
        parts.append(f"preset {workload.preset}" if workload.preset != "default" else "")
        for field, asked in changed_settings(workload):
            if field.compare:
                parts.append(f"{_title_inside(field.name, asked)} {value_words(getattr(workload, field.name))}")
    parts.append("weak scaling" if sweep.scaling == "weak" else "")
    parts.append("oversubscribed" if sweep.oversubscribe else "")
    parts.append("tuned sums" if sweep.settings else "")
    return ", ".join(filter(None, parts))


def setting_differences(first: Workload, second: Workload) -> tuple[tuple[str, str, str], ...]:
    """Return name, first and second value, in words, of every setting that counts and in which the two differ."""
    differences: list[tuple[str, str, str]] = []
    for field, asked in options(Workload):
        values = (getattr(first, field.name), getattr(second, field.name))
        if field.compare and values[0] != values[1]:
            differences.append((_title_inside(field.name, asked), value_words(values[0]), value_words(values[1])))
    return tuple(differences)


def distinguishing_names(workloads: Sequence[Workload]) -> tuple[str, ...]:
    """Return a name for each of `workloads` that says only what differs among them: ``weights:epoch``, ``epochs 5``.

    A value stands alone where a single setting differs and its values are words other than none. Empty texts where no
    setting differs.
    """
    differing: list[tuple[str, str]] = []  # name of the field, title
    for field, asked in options(Workload):
        values = {getattr(workload, field.name) for workload in workloads}
        if field.compare and len(values) > 1:
            differing.append((field.name, _title_inside(field.name, asked)))
    values_alone = False
    if len(differing) == 1:
        values_of_all = [getattr(workload, differing[0][0]) for workload in workloads]
        values_alone = all(isinstance(value, str) and value != "none" for value in values_of_all)
    names: list[str] = []
    for workload in workloads:
        texts = [(title, value_words(getattr(workload, name))) for name, title in differing]
        names.append(", ".join(text if values_alone else f"{title} {text}" for title, text in texts))
    return tuple(names)


def _title_inside(name: str, asked: Option) -> str:
    """Return what a setting is called inside of a line."""
    title = title_words(name, asked).removesuffix(" over all ranks")
    return f"{title[0].lower()}{title[1:]}"
