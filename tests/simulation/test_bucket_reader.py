"""What is committed is read, what lies after a gap or a seal is only counted, and the metadata are not needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.model import Offset, SegmentSeq, SessionId
from segments.bucket.layout import claim_key, history_file_key, manifest_key, segment_key, trimmed_key
from segments.history.manifest import encode_manifest, no_manifest
from segments.history.manifest_edits import with_compacted, with_log_start
from segments.object_store.memory import MemoryObjectStore
from tests.kit.compaction.kept import columns_of
from tests.kit.segments.batches import ORDERS, batch_of, seal_of, segment_of, stamped_run
from tests.kit.segments.history_files import write_history
from tests.simulation.bucket_reader import BucketContents, parse_record_value, read_bucket, record_value
from tests.simulation.history_checker import RecordId

A, B, C, D = (RecordId("p", number, 1) for number in range(4))


def contents_of(*segments: tuple[int, int, int, int, RecordId], seals: Iterable[tuple[int, int]] = ()) -> BucketContents:
    """Of segments given as (session, seq, leader epoch, offset, record), and seals as (session, seq)."""

    async def build() -> BucketContents:
        store = MemoryObjectStore()
        await store.create(claim_key(SessionId(1)), [b"{}"])
        for session, seq, epoch, offset, record in segments:
            run = stamped_run(offset, batch_of(record_value(record)), leader_epoch=epoch)
            encoded = segment_of(session, seq, [(ORDERS, run)], leader_epoch=epoch)
            await store.create(segment_key(SessionId(session), SegmentSeq(seq)), encoded.body)
        for session, seq in seals:
            await store.create(segment_key(SessionId(session), SegmentSeq(seq)), [seal_of(session, seq)])
        return await read_bucket(store)

    return asyncio.run(build())


def test_sessions_are_read_one_after_the_other_by_leader_epoch() -> None:
    found = contents_of((2, 0, 8, 2, C), (1, 0, 7, 0, A), (1, 1, 7, 1, B), seals=[(1, 2)])
    assert found.log == {str(ORDERS): [(0, A), (1, B), (2, C)]}
    assert (found.sessions, found.segments, found.seals, found.hidden) == (2, 3, 1, {})


def test_records_after_a_gap_are_hidden() -> None:
    found = contents_of((1, 0, 7, 0, A), (1, 2, 7, 1, B))
    assert found.log == {str(ORDERS): [(0, A)]}
    assert found.hidden == {B: "in segment 2 of session 1, which ended before it"}


def test_a_segment_that_a_later_object_calls_committed_must_exist() -> None:
    found = contents_of((1, 0, 7, 0, A), (1, 2, 7, 2, C), seals=[(1, 3)])
    assert found.missing == ["segment 1 of session 1"]


def test_records_after_a_seal_are_hidden_and_the_successor_goes_on() -> None:
    found = contents_of((1, 0, 7, 0, A), (1, 2, 7, 1, B), (1, 3, 7, 2, C), (2, 0, 8, 1, D), seals=[(1, 1)])
    assert found.log == {str(ORDERS): [(0, A), (1, D)]}
    assert set(found.hidden) == {B, C}
    assert found.hidden_segments == 2


def bucket_with_history(*, differing: bool = False) -> BucketContents:
    """Offsets 0 and 1 are in Parquet, 1 still lies in a segment as well, 2 in a segment alone; segment 0 was trimmed."""

    async def build() -> BucketContents:
        store = MemoryObjectStore()
        await store.create(claim_key(SessionId(1)), [b"{}"])
        await store.create(trimmed_key(SessionId(1), SegmentSeq(2)), [b"{}"])
        for seq, offset, record in ((1, 1, B), (2, 2, C)):
            encoded = segment_of(1, seq, [(ORDERS, stamped_run(offset, batch_of(record_value(record))))])
            await store.create(segment_key(SessionId(1), SegmentSeq(seq)), encoded.body)
        records = [(offset, 0, None, record_value(record)) for offset, record in ((0, A), (1, D if differing else B))]
        file = write_history([columns_of(records)], name="f", topic="orders", partition=0)
        manifest = with_compacted(
            no_manifest(ORDERS), files=[file.file], compacted_to=Offset(2), epochs=(), producers=(), writer="w", now_ms=0
        )
        await store.create(history_file_key("orders", ORDERS, "f"), [memoryview(file.body)])
        await store.create(manifest_key("orders", ORDERS, 1), [encode_manifest(manifest)])
        raised = with_log_start(manifest, Offset(1), writer="w", now_ms=0)
        await store.create(manifest_key("orders", ORDERS, 2), [encode_manifest(raised)])
        return await read_bucket(store)

    return asyncio.run(build())


def test_history_is_read_from_the_log_start_on_and_segments_where_it_ends() -> None:
    found = bucket_with_history()
    assert found.log == {str(ORDERS): [(1, B), (2, C)]}
    assert (found.log_start_offsets, found.compacted_to) == ({str(ORDERS): 1}, {str(ORDERS): 2})
    assert (found.files, found.missing, found.hidden) == (1, [], {})


def test_parquet_and_segments_must_say_the_same() -> None:
    with pytest.raises(AssertionError, match=r"offset 1 .* in Parquet, was"):
        bucket_with_history(differing=True)


@given(st.text("abc-#09", min_size=1), st.integers(0, 1 << 40), st.integers(1, 1000), st.integers(0, 50))
def test_a_record_is_found_again_in_its_value(producer: str, number: int, attempt: int, padding: int) -> None:
    record = RecordId(producer, number, attempt)
    assert parse_record_value(record_value(record, padding)) == record
