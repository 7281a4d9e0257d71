"""What the bucket alone says: reads every object of every session, and asks neither a broker nor the metadata.

Written apart from segments/recovery.py on purpose, so that the two can disagree. Only the formats are shared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from metadata.model import LeaderEpoch, SegmentSeq, SessionId, TopicPartition
from segments.bucket_layout import WAL, parse_wal_key
from segments.object_store import Buffer, ObjectStore
from segments.record_batch import split_batches
from segments.record_columns import iterate_records
from segments.segment_file import SEAL_BYTES, SEAL_MAGIC, Run, SegmentFooter, parse_footer, parse_seal
from tests.simulation.history_checker import RecordId

DECOMPRESSED_BYTES_MAX = 1 << 20


class VisibleRun(NamedTuple):
    """Committed batches of one partition in one segment."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    session: SessionId
    seq: SegmentSeq


@dataclass(slots=True)
class BucketContents:
    log: dict[str, list[tuple[int, RecordId]]] = field(default_factory=dict)
    """By partition, (offset, record) of what is committed, by leader epoch and then by place."""
    runs: list[VisibleRun] = field(default_factory=list)
    hidden: dict[RecordId, str] = field(default_factory=dict)
    """Records in segments at or after a seal or a gap, and where."""
    missing: list[str] = field(default_factory=list)
    """Places that some object of the same session calls committed, and that nothing stands at."""
    sessions: int = 0
    segments: int = 0
    hidden_segments: int = 0
    own_seals: int = 0
    """Sessions that their own broker ended."""
    seals: int = 0


def record_value(record: RecordId, padding: int = 0) -> bytes:
    return f"{record}|".encode() + b"." * padding


def parse_record_value(value: bytes) -> RecordId:
    producer, _, rest = value.partition(b"|")[0].decode().rpartition("#")
    number, _, attempt = rest.partition(".")
    return RecordId(producer, int(number), int(attempt))


def records_of(batches: Iterable[Buffer]) -> list[tuple[int, RecordId]]:
    """(offset, record) of every record of whole batches."""
    records = []
    for batch in batches:
        for offset, _, _, value, _ in iterate_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            assert value is not None, "no producer of the simulation sends nulls"
            records.append((offset, parse_record_value(value)))
    return records


async def read_bucket(store: ObjectStore) -> BucketContents:
    contents = BucketContents()
    runs: dict[str, list[tuple[int, int, list[tuple[int, RecordId]]]]] = defaultdict(list)
    for session, objects in sorted((await _sessions(store)).items()):
        contents.sessions += 1
        visible, committed_to = True, 0
        for place in sorted(objects):
            body = objects[place]
            visible = visible and (place == 0 or place - 1 in objects)
            if body.startswith(SEAL_MAGIC) and len(body) == SEAL_BYTES:
                seal = parse_seal(body, key=f"{session}/{place}")
                contents.seals += 1
                contents.own_seals += seal.sealed_by == session
                committed_to = max(committed_to, seal.committed_to)
                visible = False
                continue
            footer = parse_footer(body, object_size=len(body), session=session, seq=place, key=f"{session}/{place}")
            committed_to = max(committed_to, footer.committed_to)
            contents.segments += 1
            contents.hidden_segments += not visible
            for run, records in _runs(body, footer):
                if visible:
                    contents.runs.append(VisibleRun(run.partition, run.leader_epoch, session, place))
                    runs[str(run.partition)].append((run.leader_epoch, place, records))
                else:
                    where = f"in segment {place} of session {session}, which ended before it"
                    contents.hidden.update((record, where) for _, record in records)
        contents.missing += [f"segment {place} of session {session}" for place in range(committed_to) if place not in objects]
    for partition, found in sorted(runs.items()):
        found.sort(key=lambda run: run[:2])
        contents.log[partition] = [record for _, _, records in found for record in records]
    return contents


def _runs(body: bytes, footer: SegmentFooter) -> Iterable[tuple[Run, list[tuple[int, RecordId]]]]:
    for run in footer.runs:
        records = records_of(split_batches(memoryview(body)[run.start : run.end]))
        assert [offset for offset, _ in records] == list(range(run.base_offset, run.last_offset + 1)), "the footer lies"
        yield run, records


async def _sessions(store: ObjectStore) -> dict[SessionId, dict[SegmentSeq, bytes]]:
    sessions: dict[SessionId, dict[SegmentSeq, bytes]] = defaultdict(dict)
    start_after = ""
    while True:
        page = await store.list(WAL, start_after=start_after)
        for found in page.objects:
            key = parse_wal_key(found.key)
            if key is not None and key.seq is not None:
                sessions[key.session][key.seq] = await store.get(found.key)
        if not page.more:
            return sessions
        start_after = page.objects[-1].key
