"""Builders of manifests, for tests that never look at the files that they name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from metadata.model import LeaderEpoch, Offset, ProducerId, TopicPartition
from segments.bucket.layout import history_file_name, manifest_key
from segments.history.manifest import EpochStart, HistoryFile, Manifest, RememberedProducer, RowGroup, encode_manifest, no_manifest
from segments.history.manifest_edits import with_compacted
from segments.partition.producer_state import ProducerStates, SequencedBatch
from tests.kit.segments.batches import EPOCH, ORDERS, TIMESTAMP_MS
from tests.kit.segments.scripted_store import ScriptedStore

TOPIC = "orders"
ROWS_BYTES = 100


def writer_of(number: int) -> str:
    return f"{number:032x}"


def file_of(base_offset: int, last_offset: int, *, version: int = 1, groups: int = 1, nonce: int = 0) -> HistoryFile:
    """Of dense offsets, in row groups of about the same size."""
    count = last_offset - base_offset + 1
    edges = [base_offset + count * number // groups for number in range(groups + 1)]
    row_groups = tuple(
        RowGroup(
            base_offset=Offset(start),
            last_offset=Offset(end - 1),
            record_count=end - start,
            start=4 + number * ROWS_BYTES,
            end=4 + (number + 1) * ROWS_BYTES,
            max_timestamp=TIMESTAMP_MS + end,
            crc32c=0,
        )
        for number, (start, end) in enumerate(pairwise(edges))
        if start < end
    )
    return HistoryFile(
        name=history_file_name(Offset(base_offset), Offset(last_offset), version, f"{nonce:016x}"),
        base_offset=Offset(base_offset),
        last_offset=Offset(last_offset),
        record_count=count,
        size_bytes=4 + groups * ROWS_BYTES + 50,
        record_bytes=count * 10,
        min_timestamp=TIMESTAMP_MS + base_offset,
        max_timestamp=TIMESTAMP_MS + last_offset,
        checksum=f"{count:016x}",
        footer_start=4 + groups * ROWS_BYTES,
        footer_crc32c=0,
        index_crc32c=0,
        row_groups=row_groups,
    )


def compacted_to(
    offset: int,
    *,
    before: Manifest | None = None,
    partition: TopicPartition = ORDERS,
    epochs: Sequence[tuple[int, int]] = ((EPOCH, 0),),
    producers: Sequence[RememberedProducer] = (),
    writer: int = 0,
    with_file: bool = True,
) -> Manifest:
    """The next version, in which one more file goes up to `offset`."""
    before = before or no_manifest(partition)
    base = max(before.compacted_to, before.log_start_offset)
    files = [file_of(base, offset - 1, version=before.version + 1)] if with_file and base < offset else []
    starts = [EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs]
    return with_compacted(
        before,
        files=files,
        compacted_to=Offset(offset),
        epochs=starts,
        producers=producers,
        writer=writer_of(writer),
        now_ms=TIMESTAMP_MS,
    )


def remembered(end: int, *, producer_id: int = 9) -> tuple[RememberedProducer, ...]:
    """A producer after one record for each offset below `end`."""
    states = ProducerStates(producers_max=10, expiry_ms=1 << 40)
    for at in range(end):
        states.remember(SequencedBatch(ProducerId(producer_id), 0, at, at, Offset(at), Offset(at)), now_ms=TIMESTAMP_MS)
    return states.remembered(now_ms=TIMESTAMP_MS)


def plant(store: ScriptedStore, manifest: Manifest, *, topic: str = TOPIC) -> str:
    """Its key."""
    key = manifest_key(topic, manifest.topic_partition, manifest.version)
    store.plant(key, encode_manifest(manifest))
    return key
