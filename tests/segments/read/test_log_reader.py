"""Reads committed records: from memory or from the bucket, the same records either way, each range with its own fate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt, OutOfRange, TidelogError, Unavailable
from metadata.model import Offset, SegmentSeq, SessionId
from segments.bucket.layout import segment_key
from segments.byte_budget import ByteBudget
from segments.partition.leader_partitions import LeaderPartition
from segments.partition.partition_log import PartitionLog
from segments.partition.producer_state import ProducerStates
from segments.read import log_reader
from segments.read.fetch_plan import FetchPart, plan_fetch
from segments.read.log_reader import FetchResult, FetchTarget, LogReader
from segments.read.read_cache import ReadCache
from segments.read.reader_notifier import News
from segments.read.record_lookup import Explanation, RecordLookup, TimestampedOffset
from segments.read.tail_cache import BATCH_MEMORY_BYTES, TailCache
from segments.records.batch import parse_header, with_log_append_time
from segments.wal.run_index import RunIndex
from segments.wal.segment_file import StampedBatch
from tests.kit.segments.batches import EPOCH, ORDERS, PAYMENTS, TIMESTAMP_MS, batch_of, records_in, segment_of, stamped_run
from tests.kit.segments.scripted_store import REFUSED, ScriptedStore, slow
from tests.simulation.virtual_loop import run

T = TypeVar("T")
SESSION = SessionId(7)
EVERYTHING = 1 << 30


def key_of(seq: int) -> str:
    return segment_key(SESSION, SegmentSeq(seq))


class Partition:
    """A partition whose segments lie on the bucket, and the newest of whose batches are in the hot pool."""

    def __init__(self, *segments: list[bytes], hot_batches: int = 0, first_offset: int = 0) -> None:
        self.store = ScriptedStore()
        self.records: list[tuple[int, bytes | None]] = []
        runs, batches = RunIndex(), list[StampedBatch]()
        for seq, of_segment in enumerate(segments):
            run_of_batches = stamped_run(batches[-1].last_offset + 1 if batches else first_offset, *of_segment)
            batches += run_of_batches
            segment = segment_of(SESSION, seq, [(PAYMENTS, stamped_run(0, batch_of(b"not ours"))), (ORDERS, run_of_batches)])
            runs.add(segment.footer.runs[1], session=SESSION, seq=SegmentSeq(seq))
            self.store.plant(key_of(seq), b"".join(segment.body))
        self.records = records_in([part for batch in batches for part in (batch.stamp, batch.rest)])
        self.end = batches[-1].last_offset + 1
        log = PartitionLog(
            ORDERS,
            leader_epoch=EPOCH,
            log_start_offset=Offset(first_offset),
            end_offset=Offset(self.end),
            producers=ProducerStates(producers_max=1, expiry_ms=1),
        )
        log.end_offset = Offset(self.end + 5)  # buffered, not committed
        self.led = LeaderPartition(log, runs)
        self.batches = batches
        self.hot_start = batches[len(batches) - hot_batches].base_offset if hot_batches else self.end
        self.hot = TailCache(sum(batch.size_bytes + BATCH_MEMORY_BYTES for batch in batches[len(batches) - hot_batches :]))
        self.hot.add(ORDERS, batches)

    def damage(self, seq: int, offset: int) -> range:
        """Changes a byte in the batch with this offset, where it lies on the bucket; the offsets of that batch."""
        location = self.led.runs.find(offset)
        assert location is not None
        (batch,) = [batch for batch in self.batches if batch.base_offset <= offset <= batch.last_offset]
        at = location.start + sum(
            other.size_bytes for other in self.batches if location.base_offset <= other.base_offset < batch.base_offset
        )
        body = bytearray(self.store.content(key_of(seq)))
        body[at + batch.size_bytes - 1] = 0xFF
        self.store.plant(key_of(seq), bytes(body))
        return range(batch.base_offset, batch.last_offset + 1)

    def with_reader(self, work: Callable[[LogReader], Awaitable[T]]) -> T:
        async def main() -> T:
            async with asyncio.TaskGroup() as tasks:
                cold = ReadCache(
                    self.store, bytes_max=1 << 20, reads=ByteBudget(1 << 20), read_timeout_s=10, spawn=tasks.create_task
                )
                try:
                    self.lookup = RecordLookup(self.hot, cold, None, decompressed_bytes_max=1 << 20)
                    return await work(LogReader(self.hot, cold))
                except TidelogError as error:  # not through the task group, which would wrap it
                    failed.append(error)
            raise failed[0]

        failed: list[TidelogError] = []
        return run(main())

    def read(self, offset: int, *, bytes_max: int = EVERYTHING) -> FetchResult:
        return self.with_reader(lambda reader: self.fetch(reader, offset, bytes_max=bytes_max))

    async def fetch(self, reader: LogReader, offset: int, *, bytes_max: int = EVERYTHING) -> FetchResult:
        (answer,) = await reader.fetch(
            [FetchTarget(ORDERS, offset, bytes_max)],
            lambda _: self.led,
            News(),
            bytes_max=bytes_max,
            bytes_min=1,
            wait_ms_max=0,
        )
        if isinstance(answer, TidelogError):
            raise answer
        return answer

    def first_at(self, timestamp_ms: int) -> TimestampedOffset | None:
        return self.with_reader(lambda _: self.lookup.first_at(self.led, timestamp_ms))

    def latest(self) -> TimestampedOffset | None:
        return self.with_reader(lambda _: self.lookup.latest(self.led))

    def explain(self, offset: int) -> Explanation:
        return self.with_reader(lambda _: self.lookup.explain(self.led, offset))


A, B, C, D = batch_of(b"a1", b"a2"), batch_of(b"b"), batch_of(b"c1", b"c2", b"c3"), batch_of(b"d")


# ── where it is read from ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_tail_is_read_without_asking_the_bucket() -> None:
    partition = Partition([A, B], [C, D], hot_batches=2)
    fetched = partition.read(4)
    assert records_in(fetched.batches) == partition.records[3:]
    assert (fetched.next_offset, fetched.high_watermark, fetched.log_start_offset, fetched.more) == (7, 7, 0, False)
    assert fetched.size_bytes == len(C) + len(D)
    assert partition.store.calls == []


def test_history_is_read_from_the_bucket_and_goes_over_into_the_hot_pool() -> None:
    partition = Partition([A], [B], [C, D], hot_batches=2)
    fetched = partition.read(1)
    assert records_in(fetched.batches) == partition.records
    assert fetched.next_offset == 7
    assert [call.key for call in partition.store.calls] == [key_of(0), key_of(1)]


def test_a_fetch_at_the_high_watermark_is_empty_and_one_beyond_it_is_out_of_range() -> None:
    partition = Partition([A], first_offset=10)
    assert partition.read(12) == FetchResult([], 0, Offset(12), Offset(12), Offset(10), EPOCH)
    for offset in (9, 13, -1):
        with pytest.raises(OutOfRange) as refusal:
            partition.read(offset)
        assert refusal.value.details == {"log_start_offset": 10, "high_watermark": 12}


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=5),
    st.integers(0, 20),
    st.lists(st.integers(0, 700), min_size=1, max_size=5),
    st.data(),
)
def test_reading_on_from_any_offset_gives_every_record_once_wherever_it_lies(
    shape: list[list[int]], hot_batches: int, sizes: list[int], data: st.DataObject
) -> None:
    segments = [[batch_of(*[b"v" * 30] * records) for records in of_segment] for of_segment in shape]
    partition = Partition(*segments, hot_batches=min(hot_batches, sum(map(len, shape))))
    first = at = data.draw(st.integers(0, partition.end - 1))
    read: list[tuple[int, bytes | None]] = []
    while at < partition.end:
        fetched = partition.read(at, bytes_max=sizes[len(read) % len(sizes)])
        assert fetched.size_bytes == sum(map(len, fetched.batches)) > 0
        assert fetched.more == (fetched.next_offset < partition.end)
        read += records_in(fetched.batches, from_offset=at)
        at = fetched.next_offset
        assert read[-1][0] == at - 1
    assert read == partition.records[first:]


# ── what happens meanwhile ──────────────────────────────────────────────────────────────────────────────────────────────


def test_when_the_tail_is_evicted_while_history_is_read_the_reader_gets_it_from_the_bucket() -> None:
    partition = Partition([A], [B], hot_batches=1)
    partition.store.script("get", key_of(0), slow(1))

    async def work(reader: LogReader) -> FetchResult:
        reading = asyncio.create_task(partition.fetch(reader, 0))
        await asyncio.sleep(0.5)
        partition.hot.drop(ORDERS)
        return await reading

    fetched = partition.with_reader(work)
    assert (records_in(fetched.batches), fetched.next_offset) == (partition.records, 3)


def test_the_runs_of_a_history_are_read_at_the_same_time() -> None:
    partition = Partition(*[[batch_of(b"v")] for _ in range(20)])
    for seq in range(20):
        partition.store.script("get", key_of(seq), slow(1))

    async def work(reader: LogReader) -> float:
        assert records_in((await partition.fetch(reader, 0)).batches) == partition.records
        return asyncio.get_running_loop().time()

    assert partition.with_reader(work) == 2  # sixteen at a time


def test_a_history_is_looked_at_again_only_when_what_comes_next_in_it_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition(*[[batch_of(b"v")] for _ in range(16)])
    for seq in range(16):
        partition.store.script("get", key_of(seq), slow((16 - seq) / 2))  # the first comes last
    lookups: list[int] = []

    def counted(offset: int, **limits: Any) -> list[FetchPart]:
        lookups.append(offset)
        return plan_fetch(offset, **limits)

    monkeypatch.setattr(log_reader, "plan_fetch", counted)
    assert records_in(partition.read(0).batches) == partition.records
    assert len(lookups) == 2


def test_a_history_of_tiny_runs_is_answered_in_parts() -> None:
    partition = Partition(*[[batch_of(b"v")] for _ in range(100)])
    assert partition.read(0).next_offset == 64
    assert partition.store.count("get") == 64
    assert partition.read(64).next_offset == 100


# ── what is damaged, or can't be read now ───────────────────────────────────────────────────────────────────────────────


def test_a_damaged_batch_is_corrupt_and_what_stands_before_and_behind_it_is_read() -> None:
    partition = Partition([A], [B, D, C], [D])
    partition.damage(1, 3)
    before = partition.read(0)
    assert (records_in(before.batches), before.next_offset) == (partition.records[:3], 3)
    with pytest.raises(Corrupt, match="offset 3 can't be read") as damage:
        partition.read(3)
    assert (damage.value.details["key"], damage.value.details["next_offset"]) == (key_of(1), 4)
    assert records_in(partition.read(4).batches) == partition.records[4:]


@given(st.data())
def test_every_sound_record_is_read_once_by_who_steps_over_the_damaged_ones(data: st.DataObject) -> None:
    partition = Partition([A, B, C], [D, A], [C, B, B], hot_batches=data.draw(st.integers(0, 2)))
    damaged = data.draw(st.sets(st.integers(0, partition.hot_start - 1), min_size=1))
    lost: set[int] = set()
    for offset in damaged:
        lost.update(partition.damage(2 if offset >= 9 else 1 if offset >= 6 else 0, offset))
    at, read = 0, list[tuple[int, bytes | None]]()
    while at < partition.end:
        try:
            fetched = partition.read(at, bytes_max=data.draw(st.sampled_from((1, 200, EVERYTHING))))
        except Corrupt as error:
            following = int(error.details["next_offset"])
            assert set(range(at, following)) <= lost
            at = following
        else:
            read += records_in(fetched.batches, from_offset=at)
            at = fetched.next_offset
    assert read == [record for record in partition.records if record[0] not in lost]


def test_when_the_bucket_fails_half_way_what_was_read_is_answered() -> None:
    partition = Partition([A], [B])
    partition.store.script("get", key_of(1), REFUSED, REFUSED)
    assert partition.read(0).next_offset == 2
    with pytest.raises(Unavailable):
        partition.read(2)
    assert partition.read(2).next_offset == 3


def test_a_damaged_object_is_no_harm_while_its_records_are_in_memory() -> None:
    partition = Partition([A], hot_batches=1)
    partition.damage(0, 0)
    assert records_in(partition.read(0).batches) == partition.records


# ── by time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_record_at_or_after_a_time_is_found_in_offset_order() -> None:
    """Producers' clocks differ: offset 2 is older than offset 1."""
    t = TIMESTAMP_MS
    partition = Partition(
        [batch_of(b"0", b"1", timestamps_ms=[t, t + 50])],
        [batch_of(b"2", timestamps_ms=[t + 20]), batch_of(b"3", b"4", timestamps_ms=[t + 60, t + 90])],
        hot_batches=1,
    )
    found = {after: partition.first_at(t + after) for after in (-1, 0, 1, 50, 51, 60, 61, 90)}
    assert found == {
        -1: (0, t),
        0: (0, t),
        1: (1, t + 50),
        50: (1, t + 50),
        51: (3, t + 60),
        60: (3, t + 60),
        61: (4, t + 90),
        90: (4, t + 90),
    }
    assert partition.first_at(t + 91) is None


def test_log_append_time_is_the_time_of_every_record_of_its_batch() -> None:
    partition = Partition([with_log_append_time(A, TIMESTAMP_MS + 500)])
    assert partition.first_at(TIMESTAMP_MS + 1) == (0, TIMESTAMP_MS + 500)


def test_only_runs_that_can_hold_the_time_are_read() -> None:
    partition = Partition(*[[batch_of(b"x", timestamps_ms=[TIMESTAMP_MS + seq])] for seq in range(10)])
    assert partition.first_at(TIMESTAMP_MS + 7) == (7, TIMESTAMP_MS + 7)
    assert [call.key for call in partition.store.calls] == [key_of(7)]


def test_a_damaged_batch_that_may_hold_the_time_is_reported_and_an_older_one_is_skipped() -> None:
    t = TIMESTAMP_MS
    partition = Partition([batch_of(b"0", timestamps_ms=[t]), batch_of(b"1", timestamps_ms=[t + 9]), batch_of(b"2")])
    partition.damage(0, 0)
    assert partition.first_at(t + 1) == (1, t + 9)
    with pytest.raises(Corrupt, match="offset 0 can't be read") as damage:
        partition.first_at(t)
    assert damage.value.details["next_offset"] == 1
    partition.led.log.log_start_offset = Offset(1)
    assert partition.first_at(t) == (1, t + 9)


def test_the_record_with_the_largest_timestamp_is_the_first_of_those_and_costs_one_read() -> None:
    t = TIMESTAMP_MS
    partition = Partition(
        *[[batch_of(b"x", timestamps_ms=[t + seq])] for seq in range(5)],
        [batch_of(b"5", b"6", timestamps_ms=[t + 8, t + 90]), batch_of(b"7", timestamps_ms=[t + 90])],
        [batch_of(b"8", timestamps_ms=[t + 90])],
    )
    assert partition.latest() == (6, t + 90)
    assert [call.key for call in partition.store.calls] == [key_of(5)]


def test_the_largest_timestamp_is_that_of_a_record_within_the_bounds() -> None:
    t = TIMESTAMP_MS
    partition = Partition(
        [batch_of(b"0", b"1", timestamps_ms=[t + 90, t + 10])], [batch_of(b"2", timestamps_ms=[t + 5])], [batch_of(b"3")]
    )
    partition.led.log.log_start_offset = Offset(1)
    assert partition.latest() == (1, t + 10)
    partition.led.log.log_start_offset = Offset(2)
    assert partition.latest() == (2, t + 5)


def test_where_no_record_has_a_timestamp_there_is_no_largest_one() -> None:
    assert Partition([batch_of(b"0", timestamps_ms=[-1])]).latest() is None


def test_a_damaged_batch_that_may_hold_the_largest_timestamp_is_reported() -> None:
    partition = Partition([batch_of(b"0", timestamps_ms=[TIMESTAMP_MS])], [batch_of(b"1", timestamps_ms=[TIMESTAMP_MS + 9])])
    partition.damage(0, 0)
    assert partition.latest() == (1, TIMESTAMP_MS + 9)
    partition.damage(1, 1)
    with pytest.raises(Corrupt, match="offset 1 can't be read"):
        partition.latest()


def test_a_record_below_the_log_start_is_not_found() -> None:
    partition = Partition([A, B], [C])
    partition.led.log.log_start_offset = Offset(1)
    assert partition.first_at(0) == (1, TIMESTAMP_MS + 1)
    partition.led.log.log_start_offset = Offset(3)
    partition.store.calls.clear()
    assert partition.first_at(0) == (3, TIMESTAMP_MS)
    assert [call.key for call in partition.store.calls] == [key_of(1)]


# ── explained ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("offset", "first", "last", "seq", "hot"), [(0, 0, 1, 0, False), (2, 2, 2, 0, False), (5, 3, 5, 1, True)])
def test_an_offset_is_explained_by_the_bytes_that_hold_it(offset: int, first: int, last: int, seq: int, hot: bool) -> None:
    partition = Partition([A, B], [C, D], hot_batches=2)
    reported = partition.explain(offset)
    assert (reported.object_key, reported.base_offset, reported.last_offset) == (key_of(seq), first, last)
    assert (reported.session, reported.segment_seq, reported.leader_epoch, reported.in_tail_cache) == (SESSION, seq, EPOCH, hot)
    stored = partition.store.content(reported.object_key)[reported.range_start : reported.range_end]
    assert records_in([stored]) == partition.records[first : last + 1]
    assert parse_header(stored).crc == reported.crc32c


@pytest.mark.parametrize("offset", [-1, 3, 4, 9])
def test_an_offset_without_a_record_is_out_of_range_with_the_valid_range(offset: int) -> None:
    with pytest.raises(OutOfRange, match=f"has offset {offset}$") as refused:
        Partition([A, B]).explain(offset)
    assert refused.value.hint == "Its records have the offsets 0 to 2."
    assert refused.value.details == {"log_start_offset": 0, "high_watermark": 3}


def test_in_a_partition_without_records_nothing_can_be_explained() -> None:
    partition = Partition([A, B])
    partition.led.log.log_start_offset = partition.led.log.high_watermark
    with pytest.raises(OutOfRange) as refused:
        partition.explain(0)
    assert refused.value.hint == "It holds no record at the moment."


def test_an_offset_in_a_damaged_batch_can_t_be_explained_and_its_neighbours_can() -> None:
    partition = Partition([A, B, C])
    partition.damage(0, 2)
    with pytest.raises(Corrupt, match="offset 2 can't be read"):
        partition.explain(2)
    assert (partition.explain(1).last_offset, partition.explain(3).base_offset) == (1, 3)
