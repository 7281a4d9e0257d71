from __future__ import annotations

import pytest

from metadata.model import Offset, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from segments.bucket import layout
from segments.bucket.object_kinds import KINDS, kind_of

TOPIC_ID = TopicId("0" * 31 + "a")
PARTITION = TopicPartition(TOPIC_ID, Partition(3))
SESSION = SessionId(7)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (layout.segment_key(SESSION, SegmentSeq(12)), "segments"),
        (layout.WAL, "segments"),
        (layout.session_prefix(SESSION), "segments"),
        (layout.claim_key(SESSION), "wal_notes"),
        (layout.index_key(SESSION, SegmentSeq(0), SegmentSeq(32)), "wal_notes"),
        (layout.trimmed_prefix(SESSION), "wal_notes"),
        (layout.trimmed_key(SESSION, SegmentSeq(9)), "wal_notes"),
        (layout.manifest_key("orders", PARTITION, 4), "manifests"),
        (layout.manifests_prefix("orders", PARTITION), "manifests"),
        (layout.history_file_key("orders", PARTITION, layout.history_file_name(Offset(0), Offset(9), 1, "0" * 16)), "parquet"),
        (layout.history_files_prefix("orders", PARTITION), "parquet"),
        (layout.topic_mirror_key("orders", TOPIC_ID, Revision(5)), "topic_notes"),
        (layout.deleted_topic_key("orders", TOPIC_ID, Revision(5)), "topic_notes"),
        (layout.snapshot_key(layout.SnapshotPosition(1, Revision(2))), "metadata"),
        (layout.restoration_key(1), "metadata"),
        (layout.appointments_key(1), "metadata"),
        (layout.chosen_key("0" * 32, 1), "staged"),
        (layout.CLUSTER, "other"),
        (layout.proof_key("0" * 32), "other"),
        ("", "other"),
    ],
)
def test_each_key_of_the_bucket_has_its_kind(key: str, kind: str) -> None:
    assert kind_of(key) == kind
    assert kind in KINDS
