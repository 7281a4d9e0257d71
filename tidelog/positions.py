"""Parses where reading begins. Pure: the caller brings the time, and asks the broker for offsets.

"earliest"  "latest"                  the ends of each partition ("beginning" and "end" too)
"-10"  -10                            the last ten records of each partition; "-0" is "latest"
"1h"  "90s"  timedelta(hours=1)       what was written since then; units ms s m h d w
"2026-01-31T12:00:00Z"  datetime      the first record at or after that time; without an offset it is UTC
"@1767225600000"                      the same, in milliseconds since 1970-01-01 UTC
"4711"  4711                          this offset, in each partition
{0: 17, 3: 4711}                      these offsets, and only these partitions
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from metadata.errors import InvalidArgument

StartLike = str | int | datetime | timedelta | Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Earliest:
    """The log start offset of each partition."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of each partition."""


@dataclass(frozen=True, slots=True)
class LastRecords:
    """The last `count` records of each partition."""

    count: int


@dataclass(frozen=True, slots=True)
class SinceTimestamp:
    """The first record of each partition at or after a timestamp, in milliseconds."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtOffset:
    """An offset that applies to each partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Offsets by partition; only these partitions are read."""

    by_partition: dict[int, int]


Start = Earliest | Latest | LastRecords | SinceTimestamp | AtOffset | AtOffsets

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(ms|s|m|h|d|w)", re.ASCII)
_WHOLE: Final = re.compile(r"\d{1,100}", re.ASCII)
# Of offsets, and of milliseconds since 1970: 64 bits with a sign.
_MAX: Final = 2**63 - 1
_HINT: Final = "Use earliest, latest, -10 (the last ten), 1h (ago), 2026-01-31T12:00:00Z, @MILLISECONDS or an offset."


def parse_start(start: StartLike, *, now_ms: int) -> Start:
    """Raises InvalidArgument for what is none of the above."""
    match start:
        case str():
            return _parse_text(start.strip(), now_ms)
        case bool():
            raise InvalidArgument(f"{start!r} is no place to begin", hint=_HINT)
        case int():
            return AtOffset(_checked(start)) if start >= 0 else LastRecords(_checked(-start))
        case datetime():
            return SinceTimestamp(_timestamp_ms(start))
        case timedelta():
            return SinceTimestamp(max(0, now_ms - start // timedelta(milliseconds=1)))
        case Mapping():
            for partition, offset in start.items():
                if not _is_number(partition) or not _is_number(offset):
                    raise InvalidArgument(
                        f"{partition!r}: {offset!r} is not a partition and its offset", hint="Use {0: 17, 3: 4711}."
                    )
            if not start:
                raise InvalidArgument("the map of offsets is empty", hint="Use {0: 17, 3: 4711}.")
            return AtOffsets(dict(start))
    raise InvalidArgument(f"{start!r} is no place to begin", hint=_HINT)


def _parse_text(text: str, now_ms: int) -> Start:
    lowered = text.lower()
    if lowered in {"earliest", "beginning"}:
        return Earliest()
    if lowered in {"latest", "end"}:
        return Latest()
    if text.startswith("-") and _WHOLE.fullmatch(text[1:]):
        return LastRecords(_checked(int(text[1:])))
    if _WHOLE.fullmatch(text):
        return AtOffset(_checked(int(text)))
    if text.startswith("@") and _WHOLE.fullmatch(text[1:]):
        return SinceTimestamp(_checked(int(text[1:])))
    if ago := _AGO.fullmatch(lowered):
        return SinceTimestamp(max(0, now_ms - round(float(ago[1]) * _UNITS_MS[ago[2]])))
    try:
        return SinceTimestamp(_timestamp_ms(datetime.fromisoformat(text)))
    except ValueError as error:
        raise InvalidArgument(f"{text[:100]!r} is no place to begin", hint=_HINT) from error


def _timestamp_ms(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0, round(aware.timestamp() * 1000))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX


def _checked(number: int) -> int:
    if number > _MAX:
        raise InvalidArgument("the number of the place to begin is beyond 64 bits", hint=f"The largest is {_MAX}.")
    return number
