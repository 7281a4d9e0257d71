"""A Kafka consumer, which moves by batches alone, reaches the end of a partition whatever key compaction has left of it."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.model import Offset, Partition, TopicPartition
from segments.byte_budget import ByteBudget
from segments.history.index import HistoryIndex
from segments.read.log_reader import FetchResult, FetchTarget, LogReader
from segments.read.read_cache import ReadCache
from segments.read.reader_notifier import News
from segments.read.tail_cache import TailCache
from segments.records.batch import NO_LEADER_EPOCH, empty_batch, parse_header, split_batches
from tests.kit.segments.batches import ORDERS, batch_of
from tests.kit.segments.kafka_consumer import KafkaRecord, consume
from tests.kit.segments.scripted_store import ScriptedStore
from tests.kit.segments.tiered_partition import TieredPartition
from tests.segments.read.test_follower_reader import Pair, paired
from tests.simulation.virtual_loop import run

# Twelve batches of two records: offsets 0 to 23.
V = [batch_of(b"a%d" % number, b"b%d" % number) for number in range(12)]


@st.composite
def compacted_partitions(
    draw: st.DrawFn, *, has_hot: bool = True, partition: TopicPartition = ORDERS, store: ScriptedStore | None = None
) -> TieredPartition:
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=10))
    batches = [batch_of(*(b"%d/%d" % (number, at) for at in range(count))) for number, count in enumerate(counts)]
    compacted = draw(st.integers(0, len(batches)))
    kept = draw(st.sets(st.integers(0, sum(counts))))
    return TieredPartition(
        batches,
        compacted=compacted,
        hot=draw(st.integers(0, len(batches) - compacted)) if has_hot else 0,
        file_batches=draw(st.integers(1, 4)),
        group_bytes=draw(st.sampled_from([1, 200, 1 << 20])),
        keeps=lambda offset: offset in kept,
        epoch_batches=draw(st.integers(1, 9)),
        segment_batches=draw(st.integers(1, 3)),
        partition=partition,
        store=store,
    )


def surviving(partition: TieredPartition, from_offset: int) -> list[KafkaRecord]:
    return [record[:4] for record in partition.records if record[0] >= from_offset]


@given(compacted_partitions(), st.data())
def test_a_consumer_reads_each_record_that_is_left_once_and_arrives_from_any_offset(
    partition: TieredPartition, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, partition.end - 1), label="first")
    bytes_max = data.draw(st.sampled_from([1, 150, 1000, 1 << 20]), label="bytes_max")

    async def work(reader: LogReader) -> None:
        async def fetch(offset: int) -> FetchResult:
            return await partition.fetch(reader, offset, bytes_max=bytes_max)

        read = await consume(fetch, first, end_offset=partition.end, end_of_epoch=partition.led.end_of_epoch)
        assert read == surviving(partition, first)

    partition.with_reader(work)


@given(compacted_partitions(has_hot=False), st.data())
def test_so_it_does_where_another_broker_reads_the_bucket_for_it(partition: TieredPartition, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, partition.end - 1), label="first")
    bytes_max = data.draw(st.sampled_from([1, 150, 1 << 20]), label="bytes_max")

    async def scenario(pair: Pair) -> None:
        async def fetch(offset: int) -> FetchResult:
            return await pair.fetched(offset, bytes_max=bytes_max)

        read = await consume(fetch, first, end_offset=partition.end, end_of_epoch=partition.led.end_of_epoch)
        assert read == surviving(partition, first)

    paired(partition, scenario)


@pytest.mark.slow
@given(st.data())
def test_a_consumer_of_several_partitions_arrives_at_the_end_of_each(data: st.DataObject) -> None:
    store = ScriptedStore()
    topic_partitions = [TopicPartition(ORDERS.topic_id, Partition(number)) for number in range(data.draw(st.integers(2, 4)))]
    partitions = {
        topic_partition: data.draw(compacted_partitions(partition=topic_partition, store=store))
        for topic_partition in topic_partitions
    }
    bytes_max = data.draw(st.sampled_from([1, 150, 1000, 1 << 20]), label="bytes_max")
    hot = TailCache(1 << 30)
    for topic_partition, partition in partitions.items():
        if newest := [batch for batch in partition.stamped if batch.base_offset >= partition.hot_start]:
            hot.add(topic_partition, newest)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            pool = ReadCache(store, bytes_max=1 << 20, reads=ByteBudget(1 << 20), read_timeout_s=1000, spawn=tasks.create_task)
            reader = LogReader(hot, pool)
            positions = dict.fromkeys(topic_partitions, 0)
            read: dict[TopicPartition, list[KafkaRecord]] = {topic_partition: [] for topic_partition in topic_partitions}
            while behind := [
                topic_partition
                for topic_partition in topic_partitions
                if positions[topic_partition] < partitions[topic_partition].end
            ]:
                order = data.draw(st.permutations(behind))
                found = await reader.fetch(
                    [FetchTarget(topic_partition, positions[topic_partition], bytes_max) for topic_partition in order],
                    lambda topic_partition: partitions[topic_partition].led,
                    News(),
                    bytes_max=bytes_max,
                    bytes_min=1,
                    wait_ms_max=0,
                )
                before = dict(positions)
                for topic_partition, answer in zip(order, found, strict=True):
                    assert isinstance(answer, FetchResult), answer
                    if answer.batches_from(positions[topic_partition]):
                        read[topic_partition] += await consume(
                            partial(_same, answer), positions[topic_partition], end_offset=answer.next_offset
                        )
                        positions[topic_partition] = answer.next_offset
                assert positions != before, "each fetch gets on with one of them"
            assert read == {topic_partition: surviving(partition, 0) for topic_partition, partition in partitions.items()}

    run(main())


async def _same(answer: FetchResult, _: int) -> FetchResult:
    return answer


def headers_of(fetched: FetchResult, offset: int) -> list[tuple[int, int, int]]:
    """Base offset, last offset and number of records of each batch that a Kafka client gets."""
    headers = [parse_header(batch) for batch in split_batches(b"".join(fetched.batches_from(offset)))]
    return [(header.base_offset, header.last_offset, header.record_count) for header in headers]


def test_the_last_batch_of_history_covers_the_gap_up_to_the_segments_and_to_the_high_watermark() -> None:
    kept = {0, 1, 5, 6, 10}
    partition = TieredPartition(V, compacted=12, file_batches=4, group_bytes=1 << 20, keeps=lambda offset: offset in kept)
    fetched = partition.read(0)
    assert headers_of(fetched, 0) == [(0, 9, 4), (10, 23, 1)]
    assert (fetched.next_offset, fetched.more) == (24, False)
    partition = TieredPartition(V, compacted=10, file_batches=4, group_bytes=1 << 20, keeps=lambda offset: offset in kept)
    assert headers_of(partition.read(10), 10) == [(10, 19, 1), (20, 21, 2), (22, 23, 2)]


@pytest.mark.parametrize("offset", [11, 15, 23])
def test_a_fetch_that_begins_in_the_gap_at_the_end_is_answered_by_an_empty_batch_up_to_there(offset: int) -> None:
    partition = TieredPartition(V, compacted=12, keeps=lambda offset: offset <= 10)
    fetched = partition.read(offset)
    assert (fetched.batches, fetched.size_bytes, fetched.next_offset) == ([], 0, 24), "readers who follow next_offset get no batch"
    (batch,) = fetched.batches_from(offset)
    assert bytes(batch) == empty_batch(offset, 24)


def test_where_nothing_is_passed_there_is_no_empty_batch() -> None:
    partition = TieredPartition(V, compacted=12)
    assert partition.read(24).batches_from(24) == []


def test_where_a_leader_epoch_ends_in_a_gap_the_answer_ends_with_it() -> None:
    """A consumer behind it that knows the older epoch would take the end of that for a truncation."""
    partition = TieredPartition(
        V, compacted=12, group_bytes=1 << 20, epoch_batches=3, keeps=lambda offset: offset < 4 or 14 <= offset < 16
    )
    assert headers_of(partition.read(0), 0) == [(0, 5, 4)]
    assert headers_of(partition.read(6), 6) == [(14, 17, 2)]
    assert headers_of(partition.read(18), 18) == [(18, 23, 0)]
    (header,) = [parse_header(batch) for batch in partition.read(18).batches_from(18)]
    assert header.leader_epoch == NO_LEADER_EPOCH


def test_a_batch_that_covers_more_than_is_committed_here_is_left_for_later() -> None:
    partition = TieredPartition(V, compacted=12, group_bytes=1 << 20, keeps=lambda offset: offset < 10)
    partition.led.log.high_watermark = Offset(12)
    assert partition.read(0).batches_from(0) == []
    partition.led.log.high_watermark = Offset(24)
    assert headers_of(partition.read(0), 0) == [(0, 23, 10)]


def test_a_row_group_that_was_read_before_the_history_grew_covers_what_it_covered() -> None:
    partition = TieredPartition(V, compacted=12, file_batches=6, group_bytes=1 << 20, keeps=lambda offset: offset % 12 < 3)
    whole = partition.manifest
    shorter = msgspec.structs.replace(whole, files=whole.files[:1], compacted_to=Offset(8))

    async def work(reader: LogReader) -> None:
        partition.led.history = HistoryIndex(shorter, "orders")
        partition.led.log.high_watermark = Offset(8)
        assert headers_of(await partition.fetch(reader, 0), 0) == [(0, 7, 3)]
        partition.led.history = HistoryIndex(whole, "orders")
        partition.led.log.high_watermark = Offset(24)

        async def fetch(offset: int) -> FetchResult:
            return await partition.fetch(reader, offset)

        assert await consume(fetch, 0, end_offset=24) == surviving(partition, 0)

    partition.with_reader(work)
