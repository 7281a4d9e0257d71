"""Fills templates, and formats figures for people. Pure, but for reading the templates once.

Invariant: every value that a template shows is escaped, unless a template itself marks it as safe. None does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import jinja2

from gateway.console.page import link

TEMPLATES: Final = Path(__file__).parent / "templates"
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


class Templates:
    """Renders templates."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(bytes=shown_bytes, count=shown_count, duration=shown_duration, utc=utc)
        self._environment.globals.update(link=link)

    def render(self, template: str, values: Mapping[str, Any]) -> bytes:
        """Returns a page in UTF-8."""
        return self._environment.get_template(template).render(values).encode()


def shown_bytes(size: float) -> str:
    """Returns a size in binary units with three digits: 1.23 MiB."""
    power = 0
    while size >= 1023.5 and power < len(_BYTE_UNITS) - 1:
        size /= 1024
        power += 1
    return f"{size:.0f} B" if not power else f"{_three_digits(size)} {_BYTE_UNITS[power]}"


def shown_count(count: float) -> str:
    """Returns a whole number with thin spaces between thousands: 1 234 567."""
    return f"{count:,.0f}".replace(",", "\u202f")


def shown_duration(seconds: float) -> str:
    """Returns a time span in its largest unit: 3.2 h."""
    for size, unit in _SPANS:
        if seconds >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{seconds * 1000:.0f} ms" if seconds else "0 s"


def utc(ms: int) -> str:
    """Returns a time in milliseconds since 1970 as 2026-01-31 12:00:00.123Z; the number itself where no calendar has it."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}Z"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"
