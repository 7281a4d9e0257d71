"""Fills templates, and formats figures for people. Pure, but for reading the templates once.

Invariant: every value that a template shows is escaped, unless a template itself marks it as safe. None does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import jinja2

from gateway.console.page import link

TEMPLATES: Final = Path(__file__).parent / "templates"
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNT_UNITS: Final = ("", "k", "M", "G", "T")
_SPANS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


class Templates:
    """Renders templates and single blocks of them."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            bytes=shown_bytes,
            count=shown_count,
            short=short_count,
            duration=shown_duration,
            utc=utc,
            dollars=dollars,
            figure=shown_figure,
        )
        self._environment.globals.update(link=link, sparkline=sparkline)

    def render(self, template: str, values: Mapping[str, Any], *, block: str = "") -> bytes:
        """Returns a page, or one block of it, in UTF-8."""
        found = self._environment.get_template(template)
        if not block:
            return found.render(values).encode()
        context = found.new_context(dict(values))
        return "".join(found.blocks[block](context)).encode()


def shown_bytes(size: float) -> str:
    """Returns a size in binary units with three digits: 1.23 MiB."""
    return f"{_scaled(size, 1024, _BYTE_UNITS, ' ')}"


def short_count(count: float) -> str:
    """Returns a count in decimal units with three digits: 1.23M."""
    return _scaled(count, 1000, _COUNT_UNITS, "")


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


def dollars(amount: float) -> str:
    """Returns an amount of dollars with cents, or with two digits where it is below a cent."""
    if amount >= 0.01 or not amount:
        return f"${amount:,.2f}"
    return f"${amount:.2g}" if amount >= 0.0001 else "< $0.0001"


def shown_figure(value: float, kind: str) -> str:
    """Returns a value of a chart: of `records`, or of `seconds`."""
    return shown_duration(value) if kind == "seconds" else f"{shown_count(value)} records"


def sparkline(values: Sequence[float], *, times: Sequence[float] = (), width: int = 120, height: int = 24) -> str:
    """Returns the `points` of an SVG polyline over a chart of this size; empty for fewer than two values.

    `times`: when each value was, in ascending order; without them the values lie at equal distances.
    """
    if len(values) < 2:
        return ""
    top = max(values) or 1.0
    positions = times or range(len(values))
    scale = width / ((positions[-1] - positions[0]) or 1)
    points = zip(positions, values, strict=True)
    return " ".join(
        f"{scale * (position - positions[0]):.1f},{height - 1 - (height - 2) * value / top:.1f}" for position, value in points
    )


def _scaled(value: float, base: int, units: Sequence[str], gap: str) -> str:
    power = 0
    while abs(value) >= base - 0.5 and power < len(units) - 1:
        value /= base
        power += 1
    number = f"{value:.0f}" if power == 0 and value == int(value) else _three_digits(value)
    return f"{number}{gap}{units[power]}".rstrip()


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"
