"""Once DeleteRecords was answered, no reader reads below; and none sees a log start go back."""

from __future__ import annotations

import pytest

from tests.simulation.history_checker import Fetched, RecordId
from tests.simulation.policy_judge import Deleted, judge_log_starts
from tests.simulation.policy_model import Gone

P = "orders/0"
GONE = {P: Gone(5, {}, [(10, 3), (50, 5)])}
REPORTED = Deleted(P, 3, 3, reported_ms=20)


def fetched(
    start: int, *offsets: int, asked_ms: int, reported_ms: int = 100, reader: str = "r", removed_early: bool = False
) -> Fetched:
    records = tuple((offset, RecordId("p", offset, 1)) for offset in offsets)
    first = offsets[0] if offsets else start
    answer = Fetched(reader, P, first, records, 9, 1)
    return answer._replace(log_start_offset=start, asked_ms=asked_ms, reported_ms=reported_ms, removed_early=removed_early)


def judged(*events: Fetched, deleted: Deleted = REPORTED) -> list[str]:
    return [violation.evidence for violation in judge_log_starts(events, [deleted], GONE)]


def test_readers_follow_the_log_start_and_may_have_asked_before_it_was_answered() -> None:
    assert judged(fetched(0, 1, asked_ms=19), fetched(3, 3, 4, asked_ms=20), fetched(5, asked_ms=60)) == []


def test_a_reader_that_asks_after_the_answer_reads_nothing_below() -> None:
    assert judged(fetched(0, 2, asked_ms=20)) == [
        "r of orders/0 read offset 2, and all below 3 was deleted before",
        "r of orders/0 was answered that the log starts at 0 by session 1; it was 3 before",
    ]
    assert judged(fetched(0, 2, asked_ms=20, removed_early=True)) == [], "until it learns of that, its answers may be old"


def test_no_reader_sees_the_log_start_go_back() -> None:
    assert len(judged(fetched(5, asked_ms=0), fetched(3, asked_ms=1))) == 1
    assert judged(fetched(5, asked_ms=0), fetched(3, asked_ms=1, reader="other")) == []


def test_a_log_start_is_on_the_bucket_before_it_is_answered() -> None:
    assert judged(fetched(5, asked_ms=0, reported_ms=49)) == [
        "r of orders/0 was answered that the log starts at 5; on the bucket it was 3"
    ]


@pytest.mark.parametrize("deleted", [Deleted(P, 4, 3, 20), Deleted(P, 6, 6, 20)])
def test_an_answer_is_no_less_than_what_was_asked_for_and_holds_to_the_end(deleted: Deleted) -> None:
    assert len(judged(deleted=deleted)) == 1
