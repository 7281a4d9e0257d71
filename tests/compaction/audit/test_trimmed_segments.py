"""Tests which records below a trim marker count as lost, where manifests have not arrived yet. It needs no bucket."""

from __future__ import annotations

from collections.abc import Mapping

from compaction.audit.findings import RestoreFinding
from compaction.audit.trimmed_segments import TrimmedSession, without_manifest
from metadata.model import LeaderEpoch, Partition, SegmentSeq, SessionId, TopicId, TopicPartition
from segments.bucket.layout import trimmed_key
from tests.tidelog.bucket.test_restore_plan import footer

ORDERS = TopicId("a" * 32)
SESSION = SessionId(7)


def trimmed(*runs: tuple[int, int, int], to: int = 4, readable_from: int = 0, markers: tuple[int, ...] = (4,)) -> TrimmedSession:
    """`runs`: partition, leader epoch, base offset; each of two records, in a segment of its own."""
    session = TrimmedSession(SESSION, SegmentSeq(to), SegmentSeq(readable_from), tuple(SegmentSeq(marker) for marker in markers))
    for seq, run in enumerate(runs):
        session.take_in(footer(SESSION, seq, run))
    return session


def found(session: TrimmedSession, compacted_to: Mapping[int, int | None]) -> list[RestoreFinding]:
    return list(without_manifest([session], lambda partition: compacted_to.get(partition.partition, 0)))


def marker(seq: int) -> str:
    return trimmed_key(SESSION, SegmentSeq(seq))


def test_records_below_a_marker_that_manifests_have_are_no_damage() -> None:
    assert found(trimmed((0, 1, 0), (0, 1, 2), (1, 1, 0)), {0: 4, 1: 2}) == []
    assert found(trimmed((0, 1, 0), (0, 1, 2)), {0: 9}) == []


def test_records_below_a_marker_that_no_manifest_has_are_damage_that_names_their_offsets_and_the_marker() -> None:
    (missing,) = found(trimmed((0, 1, 0), (0, 1, 2)), {})
    (older,) = found(trimmed((0, 1, 0), (0, 1, 2)), {0: 2})
    assert (missing.severity, missing.where) == ("damage", marker(4))
    assert f"no manifest has offsets 0 to 3 of {ORDERS}/0" in missing.what
    assert f"no manifest has offsets 2 to 3 of {ORDERS}/0" in older.what


def test_a_finding_counts_the_partitions_and_says_which_marker_brings_the_segments_back() -> None:
    (all_there,) = found(trimmed((1, 1, 0), (0, 1, 0)), {})
    assert f"of 2 partitions, the first {ORDERS}/0" in all_there.what
    assert f"rename the marker to {marker(0)}: then these records are read from segments 0 to 3" in all_there.what
    (some_gone,) = found(trimmed((0, 1, 0), readable_from=2, markers=(1, 3, 4)), {})
    assert f"rename the marker to {marker(2)} and delete {marker(3)}: then" in some_gone.what
    (last_gone,) = found(trimmed((0, 1, 0), readable_from=4), {})
    assert "rename" not in last_gone.what


def test_partitions_of_deleted_topics_and_with_unreadable_manifests_do_not_count() -> None:
    assert found(trimmed((0, 1, 0)), {0: None}) == []


def test_the_offsets_and_the_epoch_of_a_partition_are_those_of_all_footers() -> None:
    runs = trimmed((0, 3, 4), (0, 5, 6), (0, 4, 0)).runs[TopicPartition(ORDERS, Partition(0))]
    assert (runs.start, runs.end, runs.leader_epoch) == (0, 8, LeaderEpoch(5))
