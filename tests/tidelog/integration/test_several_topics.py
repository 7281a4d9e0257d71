"""Several topics, or a pattern of names, read without a group."""

from __future__ import annotations

import asyncio
import re

import pytest

import tidelog
from metadata.errors import Corrupt, InvalidArgument, UnknownTopic
from segments.records.columns import encode_records
from tests.kit.tidelog.consuming import read_out, until, with_records
from tests.kit.tidelog.small_broker import SmallBroker

pytestmark = pytest.mark.slow


def test_several_topics_are_read_with_one_fetch_to_each_leader() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        for n in range(10):
            broker.create_topic(f"more-{n}", 1)
            await log.produce(f"more-{n}", 100 + n)
        consumer = log.consume(["orders", *(f"more-{n}" for n in range(10))], follow=False)
        assert sorted(await read_out(consumer)) == [*range(30), *range(100, 110)]
        assert consumer.positions == {("orders", n): 10 for n in range(3)} | {(f"more-{n}", 0): 1 for n in range(10)}
        assert broker.fetches <= 3

    with_records(test)


def test_each_topic_is_read_from_where_it_was_asked_to() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.create_topic("payments", 1)
        await log.produce_many("payments", range(100, 105))
        consumer = log.consume(("orders", "payments"), from_="-1", follow=False)
        assert sorted(await read_out(consumer)) == [27, 28, 29, 104]

    with_records(test)


def test_a_pattern_matches_whole_names_and_topics_that_are_made_later_are_read_from_their_start() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.create_topic("old-orders", 1)
        await log.produce("old-orders", 7)
        async with log.consume(re.compile("orders.*"), from_="latest") as consumer:
            taking = asyncio.create_task(consumer.chunk())
            await until(lambda: broker.fetches > 0)
            broker.create_topic("orders-eu", 2)
            for partition in range(2):
                broker.partitions["orders-eu", partition].append(encode_records([(None, b"8", (), 0)]))
            assert [record.json() for record in [*await taking, *await consumer.chunk()]] == [8, 8]

    with_records(test, topic_age_ms_max=30, fetch_wait_ms_max=20)


def test_a_pattern_that_no_topic_matches_yet_is_waited_for_and_up_to_the_end_there_is_nothing() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        assert await read_out(log.consume(re.compile("payments"), follow=False)) == []
        async with log.consume(re.compile("payments")) as consumer:
            taking = asyncio.create_task(consumer.chunk())
            broker.create_topic("payments", 1)
            await log.produce("payments", 9)
            assert [record.json() for record in await taking] == [9]

    with_records(test, topic_age_ms_max=30, fetch_wait_ms_max=20)


def test_a_deleted_topic_of_a_pattern_is_left_out_and_read_from_its_start_once_recreated() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.create_topic("orders-eu", 1)
        async with log.consume(re.compile("orders.*")) as consumer:
            assert sorted([value for _ in range(3) for value in [r.json() for r in await consumer.chunk()]]) == list(range(30))
            taking = asyncio.create_task(consumer.chunk())
            broker.delete_topic("orders")
            await broker.appended()
            await until(lambda: not consumer._fetching.of_topic("orders"))
            broker.create_topic("orders", 1)
            broker.partitions["orders", 0].append(encode_records([(None, b"8", (), 0)]))
            assert [(record.offset, record.json()) for record in await taking] == [(0, 8)]
            assert consumer.errors == {}

    with_records(test, topic_age_ms_max=30, fetch_wait_ms_max=20)


def test_one_of_several_named_topics_that_is_deleted_ends_and_the_others_go_on() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.create_topic("payments", 1)
        async with log.consume(["orders", "payments"]) as consumer:
            for _ in range(3):
                await consumer.chunk()
            taking = asyncio.create_task(consumer.chunk())
            broker.delete_topic("orders")
            await broker.appended()
            await until(lambda: len(consumer.errors) == 3)
            assert {type(error) for error in consumer.errors.values()} == {UnknownTopic}
            await log.produce("payments", 9)
            assert [record.json() for record in await taking] == [9]

    with_records(test, topic_age_ms_max=30, fetch_wait_ms_max=20)


def test_the_error_at_the_end_names_partitions_by_their_topics() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.create_topic("payments", 1)
        broker.read_faults = {("orders", 1): Corrupt("damaged"), ("payments", 0): Corrupt("damaged, too")}
        consumer = log.consume(["orders", "payments"], follow=False)
        with pytest.raises(Corrupt) as raised:
            await read_out(consumer)
        assert raised.value.__notes__ == ["2 partitions were not read to their ends: orders/1, payments/0."]
        assert list(consumer.errors) == [("orders", 1), ("payments", 0)]

    with_records(test)


def test_an_argument_that_names_no_topics_or_partitions_of_several_is_refused() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        for topics in ([], [7], 7, re.compile(b"orders")):
            with pytest.raises(InvalidArgument, match=r"names no topics|pattern of bytes"):
                log.consume(topics)  # type: ignore[arg-type]
        for wrong in ({"partitions": [0]}, {"from_": {0: 3}}):
            with pytest.raises(InvalidArgument, match="not one topic"):
                log.consume(["orders", "payments"], **wrong)
        with pytest.raises(UnknownTopic):
            await log.consume(["orders", "payments"]).chunk()

    with_records(test)
