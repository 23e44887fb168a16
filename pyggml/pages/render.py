"""Filling the templates."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, **values: Any) -> bytes:
    """The page of `templates/<template>.html.j2`. All values are escaped; `| data` writes one for a script to read."""
    environment = Environment(
        loader=PackageLoader("pyggml.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data"] = _data
    return environment.get_template(f"{template}.html.j2").render(**values).encode("utf-8", "replace")


def _data(value: object) -> Any:
    """JSON that may stand in a script element: nothing in it can end the element.

    >>> str(_data("</script>"))
    '"\\\\u003c/script\\\\u003e"'
    """
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704 nothing that HTML knows is left in it
