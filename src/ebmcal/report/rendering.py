"""The page as HTML: template, style and script joined into one text that asks the network for nothing."""

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

FOLD_AFTER = 220  # characters


def render(page: Mapping[str, Any], template: str = "report.html.j2") -> str:
    """The HTML of a page (by default of one made by `build_page`). Every text is escaped; only SVG goes in as it is."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("ebmcal.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(fold_after=FOLD_AFTER, is_number=_is_number)
    style, script = _part("report.css"), _part("report.js")
    html = environment.get_template(template).render(
        page, style=Markup(style), script=Markup(script), policy=_policy(script), version=_version()
    )
    # A lone surrogate has no UTF-8 form and would make the file unwritable.
    return html.encode("utf-8", "replace").decode("utf-8")


def _policy(script: str) -> str:
    """What the page may do: show itself and run its own script, nothing else, even if a text slipped through."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"


def _part(name: str) -> str:
    return resources.files("ebmcal.report").joinpath("templates", name).read_text(encoding="utf-8")


def _is_number(table: Any, index: int) -> bool:
    return any(row.entries[index].number is not None for row in table.rows)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("ebmcal")
    except metadata.PackageNotFoundError:
        return ""
