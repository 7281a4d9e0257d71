"""A topic of several partitions on a bucket of files, written by hand: Parquet files with gaps, and segments behind them."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from metadata.model import LeaderEpoch, Offset, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.topics.topic import Topic, encode_topic
from segments.bucket.layout import history_file_key, history_file_name, segment_key, topic_mirror_key
from segments.history.manifest import EpochStart, no_manifest
from segments.history.manifest_edits import with_compacted, with_replaced
from segments.history.manifest_store import commit_manifest, newest_manifest
from segments.history.parquet_file import ParquetSettings
from segments.object_store.directory import DirectoryObjectStore
from segments.object_store.interface import ObjectStore
from segments.records.batch import parse_whole, stamp
from segments.records.batch_kernel import NewRecordTuple
from segments.records.columns import decode_batches, encode_records
from segments.records.compression import Codec
from segments.wal.segment_file import StampedBatch, encode_segment
from tests.kit.segments.history_files import write_history
from tests.kit.spark.topics_on_disk import Written

T = TypeVar("T")
EPOCH = LeaderEpoch(1)
NOW_MS = 1_767_225_600_000
SMALL_GROUPS = ParquetSettings(row_group_bytes=1_500)


class MadeLog:
    def __init__(self, root: Path, *, topic: str = "orders", partitions: int = 3, id_digit: str = "a") -> None:
        self.root = root
        self.url = root.as_uri()
        self.topic = topic
        self.topic_id = TopicId(id_digit * 32)
        self.written: dict[int, list[Written]] = {partition: [] for partition in range(partitions)}
        """What is to be read of each partition, in order."""
        self._next: dict[int, int] = defaultdict(int)
        self._segments: dict[int, Iterator[int]] = defaultdict(itertools.count)
        self._nonces = itertools.count(1)
        root.mkdir(parents=True, exist_ok=True)
        made = Topic(id=self.topic_id, name=topic, partition_count=partitions, settings={}, created_at_ms=0)
        key = topic_mirror_key(topic, self.topic_id, Revision(1))
        self.on(lambda store: store.create(key, [encode_topic(made)]))

    def on(self, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        async def main() -> T:
            store = await DirectoryObjectStore.open(self.root)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(main())

    def partition(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic_id, Partition(partition))

    def history(self, partition: int, records: Sequence[NewRecordTuple], *, without: Sequence[int] = ()) -> None:
        """One more Parquet file, without the records of these places: key compaction has taken them."""
        columns, written = self._columns(partition, records)
        kept = [at for at in range(len(records)) if at not in without]
        self.written[partition] += [written[at] for at in kept]
        base, end = written[0].offset, written[-1].offset + 1

        async def write(store: ObjectStore) -> None:
            where = self.partition(partition)
            held = await newest_manifest(store, self.topic, where) or no_manifest(where)
            nonce = f"{next(self._nonces):016x}"
            made = write_history(
                [columns.take(pa.array(kept))],
                name=history_file_name(Offset(base), Offset(end - 1), held.version + 1, nonce),
                topic=self.topic,
                partition=partition,
                base_offset=base,
                last_offset=end - 1,
                settings=SMALL_GROUPS,
            )
            await store.create(history_file_key(self.topic, where, made.file.name), [memoryview(made.body)])
            version = with_compacted(
                held,
                files=[made.file],
                compacted_to=Offset(end),
                epochs=[EpochStart(EPOCH, Offset(base))],
                producers=(),
                writer="0" * 32,
                now_ms=NOW_MS,
            )
            assert await commit_manifest(store, self.topic, version)

        self.on(write)

    def replace_history(self, partition: int, records: Sequence[NewRecordTuple], *, without: Sequence[int]) -> None:
        """The only file by one without the records of these places, as a pass of key compaction does; the old one is collected."""
        self._next[partition] = 0
        columns, written = self._columns(partition, records)
        kept = [at for at in range(len(records)) if at not in without]

        async def write(store: ObjectStore) -> None:
            where = self.partition(partition)
            held = await newest_manifest(store, self.topic, where)
            assert held is not None
            (old,) = held.files
            made = write_history(
                [columns.take(pa.array(kept))],
                name=history_file_name(old.base_offset, old.last_offset, held.version + 1, f"{next(self._nonces):016x}"),
                topic=self.topic,
                partition=partition,
                base_offset=old.base_offset,
                last_offset=old.last_offset,
                settings=SMALL_GROUPS,
            )
            await store.create(history_file_key(self.topic, where, made.file.name), [memoryview(made.body)])
            version = with_replaced(held, old=[old.name], new=[made.file], cause="key-compaction", writer="0" * 32, now_ms=NOW_MS)
            assert await commit_manifest(store, self.topic, version)
            await store.delete(history_file_key(self.topic, where, old.name))

        self.on(write)
        self.written[partition] = [written[at] for at in kept]

    def segment(self, runs: Mapping[int, Sequence[NewRecordTuple]], *, codec: Codec = Codec.NONE, session: int = 1) -> None:
        """One more segment of that session, with a batch for each partition."""
        stamped = []
        for partition, records in sorted(runs.items()):
            batch = encode_records(records, codec=codec)
            offset = self._next[partition]
            self._columns(partition, records, into=self.written[partition])
            header = parse_whole(batch)
            stored = StampedBatch(
                header, Offset(offset), stamp(batch, base_offset=offset, leader_epoch=EPOCH), memoryview(batch)[16:]
            )
            stamped.append((self.partition(partition), EPOCH, [stored]))
        seq = SegmentSeq(next(self._segments[session]))
        body = encode_segment(
            session=SessionId(session),
            seq=seq,
            writer=bytes(16),
            committed_to=seq,
            written_at_ms=NOW_MS,
            partitions=stamped,
        ).body
        self.on(lambda store: store.create(segment_key(SessionId(session), seq), body))

    def _columns(
        self, partition: int, records: Sequence[NewRecordTuple], into: list[Written] | None = None
    ) -> tuple[pa.RecordBatch, list[Written]]:
        base = self._next[partition]
        self._next[partition] += len(records)
        written = [
            Written(base + at, timestamp_ms, key, value, tuple(headers))
            for at, (key, value, headers, timestamp_ms) in enumerate(records)
        ]
        if into is not None:
            into += written
        batch = encode_records(records, codec=Codec.NONE)
        head = stamp(batch, base_offset=base, leader_epoch=EPOCH)
        return decode_batches([bytes(head) + batch[16:]], decompressed_bytes_max=1 << 24), written
