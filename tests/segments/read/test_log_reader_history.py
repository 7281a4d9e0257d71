"""Reads committed records wherever they lie: the same from Parquet, segments and hot pool, and across the borders between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt, OutOfRange
from metadata.model import Offset
from segments.read.log_reader import FetchTarget, LogReader
from segments.records.batch import parse_header, split_batches, with_log_append_time
from segments.records.batch_kernel import NewRecordTuple
from segments.records.columns import encode_records
from segments.records.compression import Codec
from tests.kit.segments.batches import EPOCH, ORDERS, TIMESTAMP_MS, batch_of
from tests.kit.segments.record_strategies import record_lists
from tests.kit.segments.scripted_store import slow
from tests.kit.segments.tiered_partition import TieredPartition, tuples_in

# Twelve batches of two records: offsets 0 to 23.
V = [batch_of(b"a%d" % number, b"b%d" % number) for number in range(12)]


# ── any history ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_codecs = st.sampled_from(list(Codec))


@st.composite
def _batches(draw: st.DrawFn) -> bytes:
    records: Sequence[NewRecordTuple] = draw(record_lists)
    batch = encode_records(
        records,
        codec=draw(_codecs),
        producer_id=draw(st.integers(-1, 3)),
        producer_epoch=0,
        base_sequence=draw(st.integers(0, 100)),
    )
    return with_log_append_time(batch, TIMESTAMP_MS + draw(st.integers(0, 5))) if draw(st.booleans()) else batch


@pytest.mark.slow
@given(st.lists(_batches(), min_size=1, max_size=8), st.data())
def test_any_history_reads_the_same_wherever_it_lies_from_any_offset_in_answers_of_any_size(
    batches: list[bytes], data: st.DataObject
) -> None:
    compacted = data.draw(st.integers(0, len(batches)), label="compacted")
    kept = data.draw(st.none() | st.sets(st.integers(0, 60)), label="kept")
    partition = TieredPartition(
        batches,
        compacted=compacted,
        hot=data.draw(st.integers(0, len(batches) if kept is None else len(batches) - compacted), label="hot"),
        file_batches=data.draw(st.integers(1, 4), label="file_batches"),
        group_bytes=data.draw(st.sampled_from([1, 200, 1 << 20]), label="group_bytes"),
        keeps=(lambda _: True) if kept is None else lambda offset: offset in kept,
        epoch_batches=data.draw(st.integers(1, 9), label="epoch_batches"),
        segment_batches=data.draw(st.integers(1, 3), label="segment_batches"),
    )
    first = data.draw(st.integers(0, partition.end - 1), label="first")
    bytes_max = data.draw(st.sampled_from([1, 150, 1000, 1 << 20]), label="bytes_max")

    async def work(reader: LogReader) -> None:
        assert await partition.read_on(reader, first, bytes_max=bytes_max) == [
            record for record in partition.records if record[0] >= first
        ]

    partition.with_reader(work)


@pytest.mark.slow
@given(st.lists(_batches(), min_size=1, max_size=8), st.data())
def test_the_record_with_the_largest_timestamp_is_found_in_any_history(batches: list[bytes], data: st.DataObject) -> None:
    compacted = data.draw(st.integers(0, len(batches)), label="compacted")
    kept = data.draw(st.sets(st.integers(0, 60)), label="kept")
    partition = TieredPartition(
        batches,
        compacted=compacted,
        file_batches=data.draw(st.integers(1, 4), label="file_batches"),
        group_bytes=data.draw(st.sampled_from([1, 200, 1 << 20]), label="group_bytes"),
        keeps=lambda offset: offset in kept,
        segment_batches=data.draw(st.integers(1, 3), label="segment_batches"),
    )
    start = data.draw(st.integers(0, partition.end), label="log_start_offset")
    partition.led.log.log_start_offset = Offset(start)
    found = partition.with_reader(lambda _: partition.lookup.latest(partition.led))
    readable = [record for record in partition.records if record[0] >= start]
    assert found == max(((record[0], record[1]) for record in readable), key=lambda at: (at[1], -at[0]), default=None)


def test_batches_from_parquet_say_who_led_and_whose_clock_it_was() -> None:
    appended = with_log_append_time(V[2], TIMESTAMP_MS + 5)
    partition = TieredPartition([V[0], V[1], appended, V[3]], compacted=4, group_bytes=1 << 20, epoch_batches=2)
    headers = [parse_header(batch) for batch in split_batches(b"".join(partition.read(0).batches))]
    assert [(header.base_offset, header.leader_epoch, bool(header.attributes & 8)) for header in headers] == [
        (0, EPOCH, False),
        (4, EPOCH + 1, True),
        (6, EPOCH + 1, False),
    ]


# ── where it is read from ───────────────────────────────────────────────────────────────────────────────────────────────


def test_segments_are_read_only_below_the_tail_cache_and_parquet_only_below_the_segments() -> None:
    partition = TieredPartition(V, compacted=6, hot=3, file_batches=3, group_bytes=1 << 20)
    for offset, reads in ((18, 0), (12, 3), (6, 4), (0, 5)):
        partition.store.calls.clear()
        assert tuples_in(partition.read(offset).batches, from_offset=offset) == partition.records[offset:]
        assert partition.store.count("get") == reads


def test_a_batch_of_the_hot_pool_in_which_a_row_group_ends_comes_with_the_next_answer() -> None:
    batches = [batch_of(b"a", b"b", b"c", b"d")] * 8
    partition = TieredPartition(batches, compacted=8, hot=4, group_bytes=140)
    groups = [(group.base_offset, group.last_offset) for group in partition.manifest.files[0].row_groups]
    assert any(base < partition.hot_start <= last < partition.hot_start + 3 for base, last in groups), groups
    for offset in range(partition.end):
        headers = [parse_header(batch) for batch in split_batches(b"".join(partition.read(offset).batches))]
        assert all(before.last_offset < behind.base_offset for before, behind in pairwise(headers))
        assert headers[0].last_offset >= offset


def test_the_footer_of_a_parquet_file_is_read_once_and_with_its_only_row_group() -> None:
    partition = TieredPartition(V, compacted=12, group_bytes=200)
    assert len(partition.manifest.files[0].row_groups) > 3

    async def work(reader: LogReader) -> None:
        await partition.read_on(reader, 0, bytes_max=1)

    partition.with_reader(work)
    assert partition.store.count("get") == len(partition.manifest.files[0].row_groups)


def test_however_many_readers_wait_for_a_row_group_there_is_one_get() -> None:
    partition = TieredPartition(V, compacted=12, group_bytes=1 << 20)
    partition.store.script("get", partition.file_keys[0], slow(1))

    async def work(reader: LogReader) -> None:
        answers = await asyncio.gather(*[partition.fetch(reader, offset) for offset in range(10)])
        assert all(answer.next_offset == 24 for answer in answers)

    partition.with_reader(work)
    assert partition.store.count("get") == 1


# ── gaps ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fetch_that_meets_only_a_gap_waits_for_records_and_returns_the_next_offset() -> None:
    partition = TieredPartition(V, compacted=12, keeps=lambda offset: offset < 5)

    async def work(reader: LogReader) -> None:
        for wait_ms_max in (0, 60_000):
            fetched = await partition.fetch(reader, 5, wait_ms_max=wait_ms_max)
            assert (fetched.batches, fetched.next_offset, fetched.more) == ([], 24, False)
            assert asyncio.get_running_loop().time() == wait_ms_max / 1000

    partition.with_reader(work)
    assert partition.store.calls == []


def test_a_history_of_which_nothing_is_left_is_stepped_over_to_the_segments() -> None:
    partition = TieredPartition(V, compacted=6, keeps=lambda _: False)
    assert partition.manifest.files == ()
    fetched = partition.read(3)
    assert (tuples_in(fetched.batches), fetched.next_offset) == (partition.records, 24)


def test_the_log_start_may_lie_above_files_and_within_a_row_group() -> None:
    partition = TieredPartition(V, compacted=8, file_batches=4, group_bytes=1 << 20)
    partition.led.log.log_start_offset = Offset(11)
    assert tuples_in(partition.read(11).batches, from_offset=11) == partition.records[11:]
    with pytest.raises(OutOfRange):
        partition.read(10)
    found = partition.with_reader(lambda _: partition.lookup.first_at(partition.led, 0))
    assert found is not None
    assert found.offset == 11


def test_records_at_or_above_the_high_watermark_are_not_returned_though_a_manifest_has_them() -> None:
    """The compactor may have seen a segment whose PUT has not been answered yet."""
    partition = TieredPartition(V, compacted=12, group_bytes=1 << 20, epoch_batches=5)
    partition.led.log.high_watermark = Offset(10)
    fetched = partition.read(0)
    assert (tuples_in(fetched.batches), fetched.next_offset) == (partition.records[:10], 10)
    partition.led.log.high_watermark = Offset(18)
    waiting = partition.read(10)
    assert (waiting.batches, waiting.next_offset) == ([], 10)
    partition.led.log.high_watermark = Offset(20)
    assert partition.read(10).next_offset == 20


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_damaged_row_group_is_corrupt_and_what_stands_before_and_behind_it_is_read() -> None:
    partition = TieredPartition(V, compacted=10, group_bytes=200)
    group = partition.manifest.files[0].row_groups[1]
    partition.damage(partition.file_keys[0], group.start + 10)
    before = partition.read(0)
    assert before.next_offset == group.base_offset
    with pytest.raises(Corrupt) as damage:
        partition.read(group.base_offset)
    assert damage.value.details == {
        "key": partition.file_keys[0],
        "start": group.start,
        "end": group.end,
        "next_offset": group.last_offset + 1,
    }
    behind = partition.read(group.last_offset + 1)
    assert tuples_in(behind.batches) == partition.records[group.last_offset + 1 :]


@pytest.mark.parametrize("kind", ["cut short", "foreign", "damaged footer", "empty"])
def test_a_file_that_is_not_what_was_written_costs_its_records_only_and_each_group_says_where_to_read_on(kind: str) -> None:
    partition = TieredPartition(V, compacted=8, file_batches=4, group_bytes=200)
    key, file = partition.file_keys[0], partition.manifest.files[0]
    body = partition.store.content(key)
    match kind:
        case "cut short":
            partition.store.plant(key, body[: file.footer_start // 2])
        case "foreign":
            partition.store.plant(key, partition.store.content(partition.file_keys[1]))
        case "damaged footer":
            partition.damage(key, file.footer_start + 5)
        case _:
            partition.store.plant(key, b"")
    for group in file.row_groups:
        with pytest.raises(Corrupt) as damage:
            partition.read(group.base_offset)
        assert (damage.value.details["key"], damage.value.details["next_offset"]) == (key, group.last_offset + 1)
    assert tuples_in(partition.read(8).batches) == partition.records[8:]


def test_damage_in_parquet_is_believed_for_ten_seconds_and_then_looked_at_again() -> None:
    partition = TieredPartition(V, compacted=12, group_bytes=1 << 20)
    key = partition.file_keys[0]
    sound = partition.store.content(key)
    partition.damage(key, 10)

    async def work(reader: LogReader) -> None:
        for waited_s in (0, 9):
            await asyncio.sleep(waited_s)
            with pytest.raises(Corrupt):
                await partition.fetch(reader, 0)
            assert partition.store.count("get") == 1
            partition.store.plant(key, sound)
        await asyncio.sleep(1)
        assert (await partition.fetch(reader, 0)).next_offset == 24

    partition.with_reader(work)


# ── what is gone ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_records_of_a_file_that_is_gone_are_read_by_the_newest_manifest() -> None:
    partition = TieredPartition(V, compacted=12, file_batches=4)
    merged = TieredPartition(V, compacted=12, group_bytes=1 << 20)
    partition.newest = msgspec.structs.replace(merged.manifest, version=2)
    for key in partition.file_keys:
        partition.store.remove(key)
    partition.store.plant(merged.file_keys[0], merged.store.content(merged.file_keys[0]))
    assert tuples_in(partition.read(3).batches, from_offset=3) == partition.records[3:]
    assert partition.adopted


def test_where_a_segment_is_gone_its_records_are_in_parquet_by_now() -> None:
    partition = TieredPartition(V, compacted=4, segment_batches=4)
    compacted = TieredPartition(V, compacted=12)
    partition.newest = msgspec.structs.replace(compacted.manifest, version=2)
    for key in partition.store.keys("wal/"):
        partition.store.remove(key)
    for key in compacted.file_keys:
        partition.store.plant(key, compacted.store.content(key))
    assert tuples_in(partition.read(0).batches) == partition.records


def test_times_and_offsets_are_looked_up_again_where_a_file_is_gone() -> None:
    partition = TieredPartition(V, compacted=12, file_batches=4)
    merged = TieredPartition(V, compacted=12, group_bytes=1 << 20)
    partition.newest = msgspec.structs.replace(merged.manifest, version=2)
    partition.store.plant(merged.file_keys[0], merged.store.content(merged.file_keys[0]))
    for key in partition.file_keys:
        if key != merged.file_keys[0]:
            partition.store.remove(key)

    async def work(reader: LogReader) -> None:
        found = await partition.lookup.first_at(partition.led, TIMESTAMP_MS)
        assert found == (0, TIMESTAMP_MS)
        assert (await partition.lookup.explain(partition.led, 20)).object_key == merged.file_keys[0]

    partition.with_reader(work)


def test_where_no_manifest_knows_better_a_file_that_is_gone_is_damage_asked_for_once_in_ten_seconds() -> None:
    partition = TieredPartition(V, compacted=6, group_bytes=1 << 20)
    partition.store.remove(partition.file_keys[0])

    async def work(reader: LogReader) -> None:
        for _ in range(5):
            with pytest.raises(Corrupt, match="nothing is there") as damage:
                await partition.fetch(reader, 2, bytes_max=1)
            assert damage.value.details["next_offset"] == 12
        assert (partition.adopted, partition.store.count("get")) == (1, 1)
        assert (await partition.fetch(reader, 12)).next_offset == 24
        await asyncio.sleep(10)
        with pytest.raises(Corrupt, match="nothing is there"):
            await partition.fetch(reader, 2, bytes_max=1)
        assert partition.adopted == 2

    partition.with_reader(work)


# ── by time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=6),
    st.integers(0, 6),
    st.integers(0, 3),
    st.none() | st.sets(st.integers(0, 20)),
)
def test_the_first_record_at_or_after_a_time_is_found_on_every_tier(
    times: list[list[int]], compacted: int, hot: int, kept: set[int] | None
) -> None:
    batches = [batch_of(*[b"v"] * len(of_batch), timestamps_ms=[TIMESTAMP_MS + time for time in of_batch]) for of_batch in times]
    partition = TieredPartition(
        batches,
        compacted=min(compacted, len(batches)),
        hot=min(hot, max(0, len(batches) - (0 if kept is None else compacted))),
        keeps=(lambda _: True) if kept is None else lambda offset: offset in kept,
    )
    stored = [record for record in partition.records if record[0] >= partition.compacted_to or partition.keeps(record[0])]

    async def work(reader: LogReader) -> None:
        for time in range(TIMESTAMP_MS - 1, TIMESTAMP_MS + 32):
            expected = next(((offset, found) for offset, found, *_ in stored if found >= time), None)
            assert await partition.lookup.first_at(partition.led, time) == expected

    partition.with_reader(work)


def test_records_that_are_compacted_during_a_timestamp_lookup_are_not_stepped_over() -> None:
    """The run that is read first holds the time below the log start alone."""
    t = TIMESTAMP_MS
    batches = [batch_of(b"0", b"1", timestamps_ms=[t + 9, t]), *(batch_of(b"v", timestamps_ms=[t + 9]) for _ in range(3))]
    partition, later = TieredPartition(batches, compacted=0), TieredPartition(batches, compacted=3)
    partition.led.log.raise_log_start(Offset(1))
    for key in later.file_keys:
        partition.store.plant(key, later.store.content(key))
    partition.store.script("get", next(partition.runs.between(0, 1)).key, slow(2))

    async def work(reader: LogReader) -> None:
        looking = asyncio.ensure_future(partition.lookup.first_at(partition.led, t + 5))
        await asyncio.sleep(1)
        partition.led.history = later.led.history
        partition.led.runs.drop_below(later.compacted_to)
        assert await looking == (2, t + 9)

    partition.with_reader(work)


def test_only_the_row_group_that_holds_the_time_is_read() -> None:
    batches = [batch_of(b"v", timestamps_ms=[TIMESTAMP_MS + number]) for number in range(20)]
    partition = TieredPartition(batches, compacted=20, file_batches=10, group_bytes=1)
    found = partition.with_reader(lambda _: partition.lookup.first_at(partition.led, TIMESTAMP_MS + 19))
    assert found == (19, TIMESTAMP_MS + 19)
    assert partition.store.count("get") == 1


# ── explained ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_offset_in_parquet_is_explained_by_its_file_and_row_group() -> None:
    partition = TieredPartition(V, compacted=10, hot=1, file_batches=5, epoch_batches=3)
    reported = partition.with_reader(lambda _: partition.lookup.explain(partition.led, 13))
    file = partition.manifest.files[1]
    (number,) = [at for at, group in enumerate(file.row_groups) if group.base_offset <= 13 <= group.last_offset]
    group = file.row_groups[number]
    assert (reported.tier, reported.object_key, reported.row_group, reported.file_checksum) == (
        "parquet",
        partition.file_keys[1],
        number,
        file.checksum,
    )
    assert (reported.range_start, reported.range_end, reported.crc32c) == (group.start, group.end, group.crc32c)
    assert (reported.base_offset, reported.last_offset) == (group.base_offset, group.last_offset)
    assert (reported.leader_epoch, reported.session, reported.in_tail_cache) == (EPOCH + 2, None, False)
    of_segment = partition.with_reader(lambda _: partition.lookup.explain(partition.led, 21))
    assert (of_segment.tier, of_segment.row_group, of_segment.in_tail_cache) == ("segment", None, False)


def test_an_offset_that_key_compaction_left_away_holds_no_record() -> None:
    partition = TieredPartition(V, compacted=10, keeps=lambda offset: offset % 4 == 1, group_bytes=1 << 20)
    assert partition.with_reader(lambda _: partition.lookup.explain(partition.led, 5)).tier == "parquet"
    for offset in (0, 6, 19):
        with pytest.raises(OutOfRange, match=f"has offset {offset}$") as refused:
            partition.with_reader(lambda _, offset=offset: partition.lookup.explain(partition.led, offset))  # type: ignore[misc]
        assert refused.value.hint == "The record with this offset was removed by key compaction."


def test_a_leader_epoch_ends_where_the_next_one_begins_in_parquet_too() -> None:
    led = TieredPartition(V, compacted=7, epoch_batches=3).led
    assert [led.end_of_epoch(EPOCH + at) for at in range(5)] == [
        (EPOCH, 6),
        (EPOCH + 1, 12),
        (EPOCH + 2, 18),
        (EPOCH + 3, 24),
        (EPOCH + 4, 24),
    ]
    assert led.end_of_epoch(EPOCH - 1) == (EPOCH - 1, 0), "an epoch below all records ended where the log starts"


def test_each_record_has_the_epoch_of_its_leader_in_parquet_too() -> None:
    led = TieredPartition(V, compacted=7, epoch_batches=3).led
    assert [led.epoch_at(offset) for offset in (0, 5, 6, 13, 14, 17, 18, 23)] == [
        *(EPOCH, EPOCH, EPOCH + 1, EPOCH + 2),  # records up to 13 are in Parquet
        *(EPOCH + 2, EPOCH + 2, EPOCH + 3, EPOCH + 3),
    ]
    assert led.epoch_at(24) == led.log.leader_epoch, "no record is there yet"


# ── reading ahead ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_next_row_groups_of_a_sequential_reader_are_on_their_way_while_it_takes_the_present_one() -> None:
    partition = TieredPartition(V, compacted=12, file_batches=2, group_bytes=1 << 20)

    async def work(reader: LogReader) -> None:
        gets = []
        offset = 0
        for _ in range(4):
            offset = (await partition.fetch(reader, offset, bytes_max=1)).next_offset
            await asyncio.sleep(1)
            gets.append(partition.store.count("get"))
        assert gets == [1, 4, 5, 6]  # the second answer shows that a reader goes on: two groups are read ahead of it

    partition.with_reader(work)


def test_segments_are_read_ahead_too_and_over_the_border_from_parquet() -> None:
    partition = TieredPartition(V, compacted=6, file_batches=3, group_bytes=1 << 20)

    async def work(reader: LogReader) -> None:
        first = await partition.fetch(reader, 0, bytes_max=1)
        second = await partition.fetch(reader, first.next_offset, bytes_max=1)
        assert second.next_offset == 12
        await asyncio.sleep(1)
        calls = [call.key for call in partition.store.calls]
        assert calls[:2] == partition.file_keys
        assert [key[:4] for key in calls[2:]] == ["wal/"]

    partition.with_reader(work)


def test_for_a_reader_that_jumps_nothing_is_read_ahead() -> None:
    partition = TieredPartition(V, compacted=12, file_batches=2, group_bytes=1 << 20)

    async def work(reader: LogReader) -> None:
        for offset in (0, 8, 16, 4, 20, 12):
            await partition.fetch(reader, offset, bytes_max=1)
            await asyncio.sleep(1)
        assert partition.store.count("get") == 6

    partition.with_reader(work)


def test_nothing_is_read_ahead_where_others_would_have_to_wait_for_it() -> None:
    partition = TieredPartition(V, compacted=12, file_batches=2, group_bytes=1 << 20)

    async def work(reader: LogReader) -> None:
        first = await partition.fetch(reader, 0, bytes_max=1)
        partition.reads.take(partition.reads.bytes_max - 1)
        try:
            await partition.fetch(reader, 2, bytes_max=1)  # of the group that is there
            second = FetchTarget(ORDERS, first.next_offset, 1)
            assert second.offset == 4
            await asyncio.sleep(1)
            assert partition.store.count("get") == 1
        finally:
            partition.reads.release(partition.reads.bytes_max - 1)

    partition.with_reader(work)
