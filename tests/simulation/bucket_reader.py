"""What the bucket alone says: reads every object of every session and all history, and asks neither a broker nor the metadata.

    newest manifests ─▶ Parquet, from the log start to compacted_to ─┐
    sessions ─▶ segments that are committed ─▶ runs from there on ───┴▶ the log of each partition

Written apart from segments/recovery/recover.py and segments/history/parquet_file.py on purpose, so that they can disagree. Only the
formats are shared. Runs that are in Parquet by now, and still lie in segments, have to say the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from metadata.model import LeaderEpoch, SegmentSeq, SessionId, TopicId, TopicPartition
from segments.bucket.layout import TOPICS, WAL, history_file_key, parse_topic_key, parse_wal_key, segment_key
from segments.history.manifest import decode_manifest
from segments.object_store.interface import Buffer, ObjectStore
from segments.records.batch import split_batches
from segments.records.columns import iterate_records
from segments.wal.segment_file import SEAL_BYTES, SEAL_MAGIC, Run, SegmentFooter, parse_footer, parse_seal
from tests.simulation.history_checker import RecordId

DECOMPRESSED_BYTES_MAX = 1 << 20


class VisibleRun(NamedTuple):
    """Committed batches of one partition in one segment."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    session: SessionId
    seq: SegmentSeq


class StoredRun(NamedTuple):
    base_offset: int
    last_offset: int
    size_bytes: int
    # Of the segment.
    key: str


@dataclass(slots=True)
class BucketContents:
    # By partition, (offset, record) of what is committed: from Parquet, then by leader epoch and by place.
    log: dict[str, list[tuple[int, RecordId]]] = field(default_factory=dict)
    # Of the partitions that have a manifest.
    log_start_offsets: dict[str, int] = field(default_factory=dict)
    compacted_to: dict[str, int] = field(default_factory=dict)
    # That manifests name.
    files: int = 0
    runs: list[VisibleRun] = field(default_factory=list)
    # Of each partition the same runs, and where they lie.
    stored: dict[str, list[StoredRun]] = field(default_factory=lambda: defaultdict(list))
    # Records in segments at or after a seal or a gap, and where.
    hidden: dict[RecordId, str] = field(default_factory=dict)
    # Places that some object of the same session calls committed, and that nothing stands at.
    missing: list[str] = field(default_factory=list)
    sessions: int = 0
    segments: int = 0
    hidden_segments: int = 0
    # Sessions that their own broker ended.
    own_seals: int = 0
    seals: int = 0


# Where a record without a value has its id.
ID_HEADER = "id"


def record_value(record: RecordId, padding: int = 0) -> bytes:
    return f"{record}|".encode() + b"." * padding


def record_id(value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> RecordId:
    """Of a record as it is stored."""
    named = value if value is not None else dict(headers)[ID_HEADER]
    assert named is not None, "producers of the simulation say in each record which it is"
    return parse_record_value(named)


def parse_record_value(value: bytes) -> RecordId:
    producer, _, rest = value.partition(b"|")[0].decode().rpartition("#")
    number, _, attempt = rest.partition(".")
    return RecordId(producer, int(number), int(attempt))


def records_of(batches: Iterable[Buffer]) -> list[tuple[int, RecordId]]:
    """(offset, record) of every record of whole batches."""
    return [held for batch in batches for held in _records_of_one(bytes(batch))]


@lru_cache(8192)
def _records_of_one(batch: bytes) -> tuple[tuple[int, RecordId], ...]:
    """Several readers are given it, and the judge reads it twice."""
    read = iterate_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    return tuple([(offset, record_id(value, headers)) for offset, _, _, value, headers in read])


class Row(NamedTuple):
    """Of a Parquet file."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    is_tombstone: bool
    record: RecordId


def read_rows(body: bytes) -> list[Row]:
    columns = ["offset", "timestamp", "key", "value", "headers"]
    rows = pq.ParquetFile(pa.BufferReader(body)).read(columns=columns, use_threads=False)
    offsets, times, keys, values, headers = (rows[name] for name in rows.column_names)
    without_value = headers.to_pylist() if values.null_count else [()] * len(values)
    return [
        Row(offset, dated_ms, key, value is None, record_id(value, [(one["key"], one["value"]) for one in named or ()]))
        for offset, dated_ms, key, value, named in zip(
            offsets.to_pylist(),
            times.cast(pa.int64()).to_pylist(),
            keys.to_pylist(),
            values.to_pylist(),
            without_value,
            strict=True,
        )
    ]


async def read_bucket(store: ObjectStore) -> BucketContents:
    contents = BucketContents()
    histories = await _histories(store, contents)
    runs: dict[str, list[tuple[int, int, list[tuple[int, RecordId]]]]] = defaultdict(list)
    for session, (objects, trimmed_to) in sorted((await _sessions(store)).items()):
        contents.sessions += 1
        visible, committed_to = True, 0
        for seq in sorted(objects):
            body = objects[seq]
            visible = visible and (seq <= trimmed_to or seq - 1 in objects)
            if body.startswith(SEAL_MAGIC) and len(body) == SEAL_BYTES:
                seal = parse_seal(body, key=f"{session}/{seq}")
                contents.seals += 1
                contents.own_seals += seal.sealed_by == session
                committed_to = max(committed_to, seal.committed_to)
                visible = seq < trimmed_to  # one that came too late to fence anything
                continue
            footer = parse_footer(body, object_size=len(body), session=session, seq=seq, key=f"{session}/{seq}")
            committed_to = max(committed_to, footer.committed_to)
            contents.segments += 1
            contents.hidden_segments += not visible
            for run, records in _runs(body, footer):
                if visible:
                    contents.runs.append(VisibleRun(run.partition, run.leader_epoch, session, seq))
                    stored = StoredRun(run.base_offset, run.last_offset, run.end - run.start, segment_key(session, seq))
                    contents.stored[str(run.partition)].append(stored)
                    runs[str(run.partition)].append((run.leader_epoch, seq, records))
                else:
                    where = f"in segment {seq} of session {session}, which ended before it"
                    contents.hidden.update((record, where) for _, record in records)
        seqs = range(trimmed_to, committed_to)
        contents.missing += [f"segment {seq} of session {session}" for seq in seqs if seq not in objects]
    for partition in sorted({*runs, *histories}):
        found = sorted(runs[partition], key=lambda run: run[:2])
        contents.log[partition] = _joined(partition, contents, histories.get(partition), [records for _, _, records in found])
    return contents


def _joined(
    partition: str, contents: BucketContents, history: _History | None, runs: list[list[tuple[int, RecordId]]]
) -> list[tuple[int, RecordId]]:
    tail = [record for run in runs for record in run]
    if history is None:
        return tail
    if history.keeps_all:
        still = dict(history.records)
        for offset, record in tail:
            if history.start <= offset < history.end:
                assert still.get(offset) == record, (
                    f"offset {offset} of {partition} is {still.get(offset)} in Parquet, was {record}"
                )
    log = [*history.records, *((offset, record) for offset, record in tail if offset >= history.end)]
    return [(offset, record) for offset, record in log if offset >= history.start]


class _History(NamedTuple):
    # The log start.
    start: int
    # compacted_to
    end: int
    # Keys were never compacted.
    keeps_all: bool
    records: list[tuple[int, RecordId]]


async def _histories(store: ObjectStore, contents: BucketContents) -> dict[str, _History]:
    newest: dict[TopicPartition, tuple[int, str, str]] = {}
    deleted: set[TopicId] = set()
    async for key in _keys(store, TOPICS):
        parsed = parse_topic_key(key)
        if parsed is not None and parsed.deleted is not None:
            deleted.add(parsed.topic_id)
        if parsed is not None and parsed.manifest is not None:
            where = TopicPartition(parsed.topic_id, parsed.manifest.partition)
            newest[where] = max(newest.get(where, (0, "", "")), (parsed.manifest.version, parsed.name, key))
    histories = {}
    for where, (_, topic, key) in newest.items():
        if where.topic_id in deleted:  # it is swept, in any order
            continue
        manifest = decode_manifest(await store.get(key), key=key)
        records: list[tuple[int, RecordId]] = []
        for file in manifest.files:
            contents.files += 1
            body = await store.get(history_file_key(topic, where, file.name))
            found = [(row.offset, row.record) for row in read_rows(body)]
            assert len(body) == file.size_bytes, f"{file.name} is not the size that its manifest says"
            assert len(found) == file.record_count, f"{file.name} has {len(found)} records, its manifest says {file.record_count}"
            assert all(file.base_offset <= offset <= file.last_offset for offset, _ in found), f"{file.name} holds other offsets"
            records += found
        assert all(before[0] < after[0] for before, after in pairwise(records)), f"offsets of {where} do not ascend"
        contents.log_start_offsets[str(where)] = manifest.log_start_offset
        contents.compacted_to[str(where)] = manifest.compacted_to
        histories[str(where)] = _History(manifest.log_start_offset, manifest.compacted_to, not manifest.key_passes, records)
    return histories


def _runs(body: bytes, footer: SegmentFooter) -> Iterable[tuple[Run, list[tuple[int, RecordId]]]]:
    for run in footer.runs:
        records = records_of(split_batches(memoryview(body)[run.start : run.end]))
        assert [offset for offset, _ in records] == list(range(run.base_offset, run.last_offset + 1)), "the footer lies"
        yield run, records


async def _sessions(store: ObjectStore) -> dict[SessionId, tuple[dict[SegmentSeq, bytes], int]]:
    """Of each what stands at its places, and its trim point."""
    sessions: dict[SessionId, dict[SegmentSeq, bytes]] = defaultdict(dict)
    trimmed: dict[SessionId, int] = defaultdict(int)
    async for name in _keys(store, WAL):
        key = parse_wal_key(name)
        if key is not None and key.seq is not None:
            sessions[key.session][key.seq] = await store.get(name)
        elif key is not None and key.trimmed_to is not None:
            trimmed[key.session] = max(trimmed[key.session], key.trimmed_to)
    return {session: (sessions[session], trimmed[session]) for session in {*sessions, *trimmed}}


async def _keys(store: ObjectStore, prefix: str) -> AsyncIterator[str]:
    start_after = ""
    while True:
        page = await store.list(prefix, start_after=start_after)
        for found in page.objects:
            yield found.key
        if not page.more:
            return
        start_after = page.objects[-1].key
