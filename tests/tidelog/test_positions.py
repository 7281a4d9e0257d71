"""Where reading begins, as people write it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument
from tidelog.positions import (
    AtOffset,
    AtOffsets,
    Earliest,
    LastRecords,
    Latest,
    SinceTimestamp,
    Start,
    StartLike,
    parse_start,
)

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Earliest()),
        ("beginning", Earliest()),
        (" LATEST ", Latest()),
        ("end", Latest()),
        ("-10", LastRecords(10)),
        ("-0", LastRecords(0)),
        (-3, LastRecords(3)),
        ("0", AtOffset(0)),
        (str(2**63 - 1), AtOffset(2**63 - 1)),
        (4711, AtOffset(4711)),
        ({0: 1, 3: 5}, AtOffsets({0: 1, 3: 5})),
        ("1h", SinceTimestamp(NOW_MS - 3_600_000)),
        ("1.5 m", SinceTimestamp(NOW_MS - 90_000)),
        ("250ms", SinceTimestamp(NOW_MS - 250)),
        ("2d", SinceTimestamp(NOW_MS - 172_800_000)),
        ("9999w", SinceTimestamp(0)),
        (timedelta(hours=1), SinceTimestamp(NOW_MS - 3_600_000)),
        (-timedelta(hours=1), SinceTimestamp(NOW_MS + 3_600_000)),
        (timedelta.max, SinceTimestamp(0)),
        ("9999-12-31T23:59:59.999Z", SinceTimestamp(253_402_300_799_999)),
        ("@12345", SinceTimestamp(12345)),
        ("2026-01-01T00:00:00Z", SinceTimestamp(NOW_MS)),
        ("2026-01-01T02:00:00+02:00", SinceTimestamp(NOW_MS)),
        ("2026-01-01", SinceTimestamp(NOW_MS)),
        (datetime(2026, 1, 1, tzinfo=UTC), SinceTimestamp(NOW_MS)),
        (datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), SinceTimestamp(NOW_MS)),
    ],
    ids=repr,
)
def test_each_way_to_write_it(text: StartLike, start: Start) -> None:
    assert parse_start(text, now_ms=NOW_MS) == start


@pytest.mark.parametrize(
    "text",
    [
        *["", "yesterday", "1 fortnight", "--1", "@x", "@-5", "1e3", "2026-13-01", "-", "@", "+5", "٣"],
        *[{}, {0: -1}, {"0": 1}, {True: 1}, {0: 2**63}, True, 1.5, None],
    ],
)
def test_a_text_that_is_no_position_is_refused_with_the_ways_there_are(text: object) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_start(text, now_ms=NOW_MS)  # type: ignore[arg-type]
    assert "Use " in raised.value.hint


def test_a_number_beyond_64_bits_is_refused() -> None:
    for number in (2**63, 10**30, -(2**63), 10**5000, str(2**63), "-" + "9" * 19, "@" + "9" * 50):
        with pytest.raises(InvalidArgument, match="beyond 64 bits") as raised:
            parse_start(number, now_ms=NOW_MS)
        assert str(2**63 - 1) in raised.value.hint


@given(st.text(max_size=30))
def test_no_text_brings_it_down(text: str) -> None:
    with suppress(InvalidArgument):
        assert parse_start(text, now_ms=NOW_MS) is not None
