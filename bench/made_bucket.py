"""A topic on a directory as brokers and compactors leave it, written without either: segments with their indexes, and manifests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.batches import TIMESTAMP_MS
from metadata.model import LeaderEpoch, Offset, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.topics.topic import Topic, encode_topic
from segments.bucket.layout import (
    history_file_key,
    history_file_name,
    index_key,
    manifest_key,
    segment_key,
    topic_mirror_key,
)
from segments.history.manifest import EpochStart, HistoryFile, RowGroup, encode_manifest, no_manifest
from segments.history.manifest_edits import with_compacted
from segments.history.parquet_file import HistoryWriter, ParquetSettings
from segments.object_store.interface import Buffer
from segments.records.batch import parse_whole, stamp
from segments.records.columns import decode_batches
from segments.settings import SegmentSettings
from segments.wal.footer_index import FooterBlocks, encode_index
from segments.wal.segment_file import StampedBatch, encode_segment

TOPIC = "made"
_TOPIC_ID = TopicId("b" * 32)
_EPOCH = LeaderEpoch(1)
_SESSION = SessionId(1)
_DECOMPRESSED_MAX = 1 << 30
GROUPS_PER_FILE = 8


class MadeBucket:
    """Partitions are alike. Parquet is written before segments, and no broker can open it."""

    def __init__(self, root: Path, partitions: int) -> None:
        self.root = root
        self.url = root.as_uri()
        self.partitions = partitions
        self._next = 0
        topic = Topic(id=_TOPIC_ID, name=TOPIC, partition_count=partitions, settings={}, created_at_ms=0)
        self._put(topic_mirror_key(TOPIC, _TOPIC_ID, Revision(1)), [encode_topic(topic)])

    @property
    def folder(self) -> str:
        """Of its Parquet files."""
        return f"{self.root}/topics/{TOPIC}/{_TOPIC_ID}"

    def history(self, batch: bytes, *, batches_per_file: int, files: int) -> None:
        """Real files, of this batch again and again, in each partition."""
        count = parse_whole(batch).record_count
        for partition in range(self.partitions):
            made = []
            for base in range(0, files * batches_per_file * count, batches_per_file * count):
                writer = HistoryWriter(TOPIC, partition, ParquetSettings())
                for offset in range(base, base + batches_per_file * count, count):
                    stamped = bytes(stamp(batch, base_offset=offset, leader_epoch=_EPOCH)) + batch[16:]
                    writer.append(decode_batches([stamped], decompressed_bytes_max=_DECOMPRESSED_MAX))
                written = writer.finish(_file_name(base, base + batches_per_file * count))
                self._put(history_file_key(TOPIC, self._partition(partition), written.file.name), [memoryview(written.body)])
                made.append(written.file)
            self._manifest(partition, made)
        self._next = files * batches_per_file * count

    def history_in_name_only(self, *, files: int, records_per_file: int) -> None:
        """A manifest for each partition that names so many files, which are not there: what a plan needs of them."""
        made = [_named_file(base, records_per_file) for base in range(0, files * records_per_file, records_per_file)]
        for partition in range(self.partitions):
            self._manifest(partition, made)
        self._next = files * records_per_file

    def segments(self, batch: bytes, count: int, *, batches_per_run: int = 1) -> None:
        """Each with a run of this batch for each partition, in one session, with indexes as a broker writes them."""
        header = parse_whole(batch)
        blocks = FooterBlocks(SegmentSettings().index_every_segments)
        for seq in map(SegmentSeq, range(count)):
            run = []
            for offset in range(self._next, self._next + batches_per_run * header.record_count, header.record_count):
                head = stamp(batch, base_offset=offset, leader_epoch=_EPOCH)
                run.append(StampedBatch(header, Offset(offset), head, memoryview(batch)[16:]))
            segment = encode_segment(
                session=_SESSION,
                seq=seq,
                writer=bytes(16),
                committed_to=seq,
                written_at_ms=TIMESTAMP_MS,
                partitions=[(self._partition(partition), _EPOCH, run) for partition in range(self.partitions)],
            )
            self._put(segment_key(_SESSION, seq), segment.body)
            if (block := blocks.add(seq, segment.footer_bytes)) is not None:
                self._put(index_key(_SESSION, block.first, block.end), encode_index(_SESSION, block))
            self._next += batches_per_run * header.record_count

    def _partition(self, partition: int) -> TopicPartition:
        return TopicPartition(_TOPIC_ID, Partition(partition))

    def _manifest(self, partition: int, files: Sequence[HistoryFile]) -> None:
        manifest = with_compacted(
            no_manifest(self._partition(partition)),
            files=files,
            compacted_to=Offset(files[-1].last_offset + 1),
            epochs=[EpochStart(_EPOCH, Offset(0))],
            producers=(),
            writer="0" * 32,
            now_ms=TIMESTAMP_MS,
        )
        self._put(manifest_key(TOPIC, self._partition(partition), 1), [encode_manifest(manifest)])

    def _put(self, key: str, body: Sequence[Buffer]) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(body)


def _file_name(base: int, end: int) -> str:
    return history_file_name(Offset(base), Offset(end - 1), 1, f"{base:016x}")


def _named_file(base: int, records: int) -> HistoryFile:
    """Of 64 MiB, in row groups of 8."""
    group_bytes, share = 8 << 20, records // GROUPS_PER_FILE
    groups = tuple(
        RowGroup(
            Offset(base + at * share),
            Offset(base + (at + 1) * share - 1),
            share,
            4 + at * group_bytes,
            4 + (at + 1) * group_bytes,
            TIMESTAMP_MS,
            0,
        )
        for at in range(GROUPS_PER_FILE)
    )
    footer_start = groups[-1].end
    return HistoryFile(
        name=_file_name(base, base + records),
        base_offset=Offset(base),
        last_offset=Offset(base + records - 1),
        record_count=share * GROUPS_PER_FILE,
        size_bytes=footer_start + 10_000,
        record_bytes=GROUPS_PER_FILE * (16 << 20),
        min_timestamp=TIMESTAMP_MS,
        max_timestamp=TIMESTAMP_MS,
        checksum="0" * 16,
        footer_start=footer_start,
        footer_crc32c=0,
        index_crc32c=0,
        row_groups=groups,
    )
