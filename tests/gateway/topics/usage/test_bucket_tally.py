from __future__ import annotations

import pytest

from gateway.topics.usage.bucket_tally import BucketTally, Tally
from metadata.model import Offset, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from segments.bucket import layout
from segments.object_store.interface import ObjectInfo
from segments.wal.segment_file import SEAL_BYTES

ORDERS, SALES = TopicId("a" * 32), TopicId("b" * 32)


def tallied(*objects: tuple[str, int]) -> BucketTally:
    tally = BucketTally()
    for key, size in sorted(objects):
        tally.take_in([ObjectInfo(key, size)])
    tally.end()
    return tally


def segment(session: int, seq: int, size: int) -> tuple[str, int]:
    return layout.segment_key(SessionId(session), SegmentSeq(seq)), size


def test_segments_below_a_trim_marker_wait_for_their_deletion() -> None:
    tally = tallied(
        *(segment(1, seq, 100 + seq) for seq in (2, 3, 4, 5)),
        (layout.trimmed_key(SessionId(1), SegmentSeq(2)), 0),
        (layout.trimmed_key(SessionId(1), SegmentSeq(4)), 0),
        (layout.claim_key(SessionId(1)), 50),
        segment(2, 0, 1_000),
    )
    assert tally.trimmed == Tally(2, 205)
    assert tally.kinds == {"segments": Tally(5, 1_414), "wal_notes": Tally(3, 50)}
    assert tally.total == Tally(8, 1_464)


def test_sessions_with_a_seal_are_counted() -> None:
    tally = tallied(segment(1, 0, 100), segment(1, 1, SEAL_BYTES), segment(1, 2, 100), segment(2, 0, 100))
    assert (tally.sessions, tally.sealed_sessions) == (2, 1)


def test_objects_below_topics_are_counted_by_topic_and_deleted_ones_are_marked() -> None:
    at = TopicPartition(ORDERS, Partition(0))
    file = layout.history_file_key("orders", at, layout.history_file_name(Offset(0), Offset(9), 1, "0" * 16))
    tally = tallied(
        (file, 900),
        (layout.manifest_key("orders", at, 1), 70),
        (layout.topic_mirror_key("orders", ORDERS, Revision(1)), 30),
        (layout.topic_mirror_key("sales", SALES, Revision(1)), 30),
        (layout.deleted_topic_key("sales", SALES, Revision(2)), 0),
    )
    orders, sales = tally.topics[ORDERS], tally.topics[SALES]
    assert (orders.name, orders.parquet, orders.notes, orders.is_deleted) == ("orders", Tally(1, 900), Tally(2, 100), False)
    assert (sales.notes, sales.is_deleted) == (Tally(2, 30), True)


def test_topics_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.topics.usage.bucket_tally.TOPICS_MAX", 1)
    tally = tallied(
        (layout.topic_mirror_key("orders", ORDERS, Revision(1)), 10), (layout.topic_mirror_key("sales", SALES, Revision(1)), 20)
    )
    assert list(tally.topics) == [ORDERS]
    assert tally.other_topics == Tally(1, 20)
    assert tally.total == Tally(2, 30)


def test_names_that_tidelog_did_not_write_are_counted_and_change_nothing() -> None:
    tally = tallied(("wal/mine", 5), ("topics/mine", 6), ("mine", 7))
    assert tally.total == Tally(3, 18)
    assert not tally.topics
    assert tally.sessions == 0
