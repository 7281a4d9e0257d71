"""A topic on a bucket of files, as brokers and a compactor leave it: part in Parquet, the rest in segments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from metadata.model import Offset, Partition, Revision, TopicId, TopicPartition
from metadata.topics.topic import Topic, encode_topic
from segments.bucket.layout import deleted_topic_key, topic_mirror_key
from segments.history.manifest import no_manifest
from segments.history.manifest_edits import with_log_start
from segments.history.manifest_store import commit_manifest, newest_manifest
from segments.object_store.directory import DirectoryObjectStore
from segments.records.batch_kernel import NewRecordTuple
from segments.records.columns import encode_records
from segments.records.compression import Codec
from segments.recovery.recover import recover
from segments.recovery.recovered_partition import RecoveredPartition
from tests.compaction.integration.test_through_a_log import QUICK, compactor_on, leading, now_ms, session_of
from tests.kit.segments.batches import ORDERS, header_of, led

START_MS = 1_767_225_600_000


def records(first: int, count: int, seed: int = 0) -> list[NewRecordTuple]:
    """One a second; with and without keys, values and headers."""
    chance = random.Random(f"{first}/{seed}")
    made: list[NewRecordTuple] = []
    for n in range(first, first + count):
        key = chance.choice((None, b"", b"k%d" % (n % 7)))
        value = chance.choice((None, b"", b"v%d" % n * 20))
        headers = chance.choice(((), (("h", b"1"), ("h", None))))
        made.append((key, value, headers, START_MS + 1000 * n))
    return made


class Written(NamedTuple):
    """A record as it is to be read."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Bucket:
    """A directory with `orders`, of one partition: records are produced, and compacted, as often as a test likes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"file://{root}"
        self.written: list[Written] = []
        """To partition 0."""
        self._sessions = 0
        self._led: dict[TopicPartition, list[int]] = {}
        self.mirror("orders", ORDERS.topic_id, 1)

    def mirror(self, name: str, topic_id: TopicId, partitions: int, *, revision: int = 1, created_at_ms: int = 0) -> None:
        topic = Topic(id=topic_id, name=name, partition_count=partitions, settings={}, created_at_ms=created_at_ms)
        self.put(topic_mirror_key(name, topic_id, Revision(revision)), encode_topic(topic))

    def mark_deleted(self, name: str, topic_id: TopicId, revision: int = 2) -> None:
        self.put(deleted_topic_key(name, topic_id, Revision(revision)), b"{}")

    def put(self, key: str, body: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def produce(self, *batches: Sequence[NewRecordTuple], codec: Codec = Codec.NONE, partition: int = 0) -> None:
        """Each as a batch, and as a segment of its own, by one more leader, which ends after the last."""
        asyncio.run(self._produce(batches, codec, TopicPartition(ORDERS.topic_id, Partition(partition))))

    def compact(self) -> None:
        """All that is in segments goes to Parquet; segments are trimmed."""
        asyncio.run(self._compact())

    def delete_records(self, before: int) -> None:
        """As a leader does: by a manifest with a raised log start."""
        asyncio.run(self._delete_records(before))

    async def _delete_records(self, before: int) -> None:
        store = await DirectoryObjectStore.open(self.root)
        try:
            held = await newest_manifest(store, "orders", ORDERS) or no_manifest(ORDERS)
            raised = with_log_start(held, Offset(before), writer="0" * 32, now_ms=now_ms())
            assert await commit_manifest(store, "orders", raised)
        finally:
            await store.close()

    async def _produce(self, batches: Sequence[Sequence[NewRecordTuple]], codec: Codec, where: TopicPartition) -> None:
        store = await DirectoryObjectStore.open(self.root, make_root=True)
        try:
            before = [led(number, number) for number in self._led.setdefault(where, [])]
            self._sessions += 1
            number = self._sessions
            self._led[where].append(number)
            by = session_of(number)
            found = await recover(store, {where: before}, by=by, settings=QUICK, now_ms=now_ms, topics={where: "orders"})
            recovered = found[where]
            assert isinstance(recovered, RecoveredPartition), recovered
            async with leading(store, number, number, recovered=(recovered,)) as log:
                for records in batches:
                    batch = encode_records(records, codec=codec)
                    appended = await log.produce(where, batch, header_of(batch))
                    if where.partition == 0:
                        self.written += [
                            Written(appended.base_offset + at, timestamp_ms, key, value, tuple(headers))
                            for at, (key, value, headers, timestamp_ms) in enumerate(records)
                        ]
        finally:
            await store.close()

    async def _compact(self) -> None:
        store = await DirectoryObjectStore.open(self.root)
        compactor, following = await compactor_on(store)
        try:
            for _ in range(3):
                assert not (await compactor.tick()).failed
        finally:
            following.cancel()
            await store.close()
