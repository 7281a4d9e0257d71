"""Followers of notices receive each of them once, and the newest that stand; the watch itself is
tests/metadata/store/test_range_watch.py's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from metadata.cluster.manifest_notice import ManifestNotice, encode_notices
from metadata.cluster.manifest_notices import ManifestNoticeCache
from metadata.model import Partition, Revision, TopicId, TopicPartition
from metadata.store.interface import Event, KeyValue
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore

LAYOUT = KeyLayout()
ORDERS = TopicPartition(TopicId("1f" * 16), Partition(0))


class Follower:
    def __init__(self) -> None:
        self.notices = ManifestNoticeCache(SqliteStore(Path(":memory:")), LAYOUT)
        self.reported: list[ManifestNotice] = []
        self.notices.subscribe(self.reported.extend)

    def put(self, unit: str, version: int, *, is_deletion: bool = False) -> ManifestNotice:
        notice = ManifestNotice(*ORDERS, version, is_deletion)
        self.notices._apply([Event("put", LAYOUT.compaction(unit), encode_notices([notice])[0], Revision(1))])
        return notice

    def expire(self, unit: str) -> None:
        self.notices._apply([Event("delete", LAYOUT.compaction(unit), b"", Revision(1))])

    def read_again(self, standing: Iterable[tuple[str, ManifestNotice]]) -> None:
        revision = Revision(2)
        self.notices._replace(
            [KeyValue(LAYOUT.compaction(unit), encode_notices([one])[0], revision, revision, version=1) for unit, one in standing]
        )


def test_a_notice_is_passed_on_though_an_earlier_one_had_its_version_or_a_higher_one() -> None:
    """The earlier notices may be of manifests that were never written."""
    follower = Follower()
    never_written = follower.put("u1", 3, is_deletion=True)
    of_a_compactor, late = follower.put("u2", 3), follower.put("u3", 2)
    assert follower.reported == [never_written, of_a_compactor, late]
    assert follower.notices.version(ORDERS) == 3


def test_the_newest_version_stands_as_long_as_a_key_that_has_it() -> None:
    follower = Follower()
    follower.put("u1", 3)
    follower.put("u2", 3)
    follower.expire("u1")
    assert follower.notices.version(ORDERS) == 3
    follower.expire("u2")
    assert follower.notices.version(ORDERS) == 0


def test_notices_that_are_read_again_after_a_gap_in_history_are_not_reported_twice() -> None:
    follower = Follower()
    first = follower.put("u1", 3)
    follower.put("u2", 4)
    follower.reported.clear()
    missed = ManifestNotice(*ORDERS, 5)
    follower.read_again([("u1", first), ("u3", missed)])
    assert follower.reported == [missed]
    assert follower.notices.version(ORDERS) == 5
