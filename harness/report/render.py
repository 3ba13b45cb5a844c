"""Pages from templates: every name must be known, every text is escaped."""

from typing import Any

import jinja2
from markupsafe import Markup

from harness.files import resource
from harness.report import numbers
from harness.report.palette import TONES

TEMPLATES = "reports/templates"


def page(template: str, **values: Any) -> str:
    """Return the page that `template` (a file of reports/templates) makes of `values`.

    `svg` marks trusted drawings; everything else is escaped. An unknown name in the template is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource(TEMPLATES)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"n": numbers, "tones": TONES}
    environment.filters["svg"] = Markup
    return environment.get_template(template).render(**values)
