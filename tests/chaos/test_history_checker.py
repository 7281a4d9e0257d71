"""The judge is judged: a clean history passes, and each anomaly is found by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.history import (
    Acknowledged,
    AnyEvent,
    Blow,
    Ended,
    Healed,
    History,
    Leaders,
    OffsetValues,
    OnBucket,
    Polled,
    Refused,
    Sent,
    Served,
    Unexpected,
    Unknown,
    read_history,
)
from tests.chaos.history_checker import check
from tests.chaos.report import pauses, summary


def sent(operation: int, *values: str, ordered: bool = True) -> Sent:
    return Sent(float(operation), operation, values, ordered)


def acknowledged(operation: int, *offsets: int, time_s: float = 9.0) -> Acknowledged:
    return Acknowledged(time_s, operation, tuple((0, offset) for offset in offsets))


def polled(from_offset: int, *records: tuple[int, str], reader: str = "r", high_watermark: int | None = None) -> Polled:
    return Polled(9.0, reader, 0, from_offset, records, high_watermark)


LOG: OffsetValues = ((0, "a#0"), (1, "a#1"), (2, "b#0"), (3, "a#2"))

CLEAN: list[AnyEvent] = [
    Leaders(0.5, (1,)),
    sent(1, "a#0", "a#1"),
    sent(2, "b#0", ordered=False),
    Blow(2.5, "kill", "b1", 1.0),
    acknowledged(1, 0, 1),
    polled(0, (0, "a#0"), high_watermark=2),
    polled(1, (1, "a#1"), high_watermark=2),
    polled(2, high_watermark=2),
    Unknown(9.0, 2, "timeout"),
    sent(3, "a#2"),
    sent(4, "b#1", ordered=False),
    Refused(9.0, 4, "NO_LEADER"),
    acknowledged(3, 3),
    Healed(9.5),
    Leaders(9.6, (3,)),
    polled(2, (2, "b#0"), (3, "a#2"), high_watermark=4),
    Ended(9.6, "b2", 1, was_ready=False),
    Served(10.0, 0, LOG),
    OnBucket(11.0, 0, LOG),
]


def with_log(events: list[AnyEvent], log: OffsetValues) -> list[AnyEvent]:
    """The same history, whose log is another in the end."""
    kept: list[AnyEvent] = [event for event in events if not isinstance(event, (Served, OnBucket))]
    return [*kept, Served(10.0, 0, log), OnBucket(11.0, 0, log)]


def anomalies(events: list[AnyEvent]) -> set[str]:
    return {violation.anomaly for violation in check(events)}


def test_a_clean_history_passes() -> None:
    assert check(CLEAN) == []


def test_the_checker_knows_nothing_of_an_end_that_was_never_reached() -> None:
    assert check([event for event in CLEAN if not isinstance(event, (Served, OnBucket))]) == []


BROKEN: dict[str, Callable[[], list[AnyEvent]]] = {
    "lost-write": lambda: with_log([*CLEAN, sent(5, "a#3"), acknowledged(5, 4)], (*LOG, (5, "b#9"))),
    "unseen": lambda: [*CLEAN, sent(5, "a#3"), acknowledged(5, 4)],
    "duplicate": lambda: with_log(CLEAN, (*LOG, (4, "b#0"))),
    "inconsistent-offsets": lambda: [*CLEAN, sent(5, "c#0"), polled(3, (3, "c#0"), reader="other")],
    "nonmonotonic-poll": lambda: [*CLEAN, polled(4, (3, "a#2"))],
    "int-poll-skip": lambda: [*CLEAN, polled(0, (0, "a#0"), (2, "b#0"), (3, "a#2"), reader="other")],
    "poll-skip": lambda: [*CLEAN, polled(0, (0, "a#0"), reader="other"), polled(1, (2, "b#0"), (3, "a#2"), reader="other")],
    "reordered": lambda: with_log(CLEAN, ((0, "a#1"), (1, "a#0"), (2, "b#0"), (3, "a#2"))),
    "refused-write": lambda: with_log(CLEAN, (*LOG, (4, "b#1"))),
    "made-up": lambda: with_log(CLEAN, (*LOG, (4, "z#0"))),
    "uncommitted-read": lambda: [*CLEAN, polled(3, (3, "a#2"), reader="other", high_watermark=3)],
    "watermark-went-back": lambda: [*CLEAN, polled(4, high_watermark=3)],
    "insufficient-bucket": lambda: [*CLEAN, OnBucket(12.0, 0, LOG[:-1])],
    "unexpected": lambda: [*CLEAN, Unexpected(12.0, "sdk", "INTERNAL: it hurts")],
}


@pytest.mark.parametrize("anomaly", BROKEN)
def test_each_anomaly_is_found_by_its_name(anomaly: str) -> None:
    assert anomaly in anomalies(BROKEN[anomaly]())


def test_a_record_that_was_read_and_is_gone_is_a_lost_write_even_unacknowledged() -> None:
    assert anomalies(with_log(CLEAN, ((0, "a#0"), (1, "a#1"), (3, "a#2")))) == {"lost-write"}


def test_an_acknowledged_record_that_another_one_displaced_is_lost_too() -> None:
    events = [*CLEAN, sent(5, "c#0"), acknowledged(5, 3)]
    assert anomalies(events) == {"inconsistent-offsets", "lost-write"}


def test_a_reader_that_ends_before_an_acknowledged_record_has_not_seen_it() -> None:
    (violation,) = check([*CLEAN, polled(0, *LOG[:2], reader="slow")])
    assert violation.anomaly == "unseen"
    assert "slow ended at 2 of partition 0, before a#2" in violation.evidence


def test_records_whose_outcome_is_not_known_may_be_there_or_not() -> None:
    assert check(with_log([*CLEAN, sent(5, "b#2", ordered=False), Unknown(9.0, 5, "timeout")], (*LOG, (4, "b#2")))) == []


def test_producers_without_idempotence_may_be_out_of_order() -> None:
    late = [*CLEAN, sent(5, "b#2", ordered=False), sent(6, "b#3", ordered=False)]
    assert check(with_log(late, (*LOG, (4, "b#3"), (5, "b#2")))) == []


def test_a_broker_that_ends_by_itself_once_it_served_is_reported() -> None:
    (violation,) = check([*CLEAN, Ended(5.0, "b3", 70, was_ready=True)])
    assert violation.evidence == "b3 ended by itself after 5.0 s, exit code 70"


def test_a_history_is_read_back_as_it_was_written_without_the_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "history.ndjson"
    with History(path) as history:
        for event in CLEAN:
            history.add(event)
    assert read_history(path) == CLEAN
    path.write_bytes(path.read_bytes() + b'{"event":"sent","time_s":1')
    assert read_history(path) == CLEAN


def test_the_longest_pause_is_measured_while_there_is_load() -> None:
    events: list[AnyEvent] = [
        sent(1, "a#0"),
        sent(2, "a#1"),
        sent(3, "a#2"),
        acknowledged(1, 0, time_s=1.0),
        acknowledged(2, 1, time_s=3.5),
        Healed(4.0),
        acknowledged(3, 2, time_s=60.0),
    ]
    assert pauses(events) == "longest pause in acknowledgements: 2.50 s over all, 2.50 s in one partition (0, from 1.0 s on)"


def test_the_summary_counts_the_outcomes_of_each_producer() -> None:
    assert "a                sent 3   acknowledged 3" in summary(CLEAN)
    assert "b                sent 2   unknown 1   refused 1" in summary(CLEAN)
    assert "blows: kill 1" in summary(CLEAN)
    assert "changes of leaders: 2" in summary(CLEAN)
