"""Where reading begins is asked for so that no record falls between two questions, and one damaged partition fails alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tidelog
from metadata.errors import Corrupt, TidelogError, UnknownPartition, UnknownTopic
from tests.kit.tidelog.consuming import read, with_records
from tests.kit.tidelog.small_broker import SmallBroker
from tidelog.consumer.offset_lookup import offset_ranges, ranges_or_errors, starting_offsets
from tidelog.positions import Earliest, LastRecords, Latest, SinceTimestamp, Start
from tidelog.settings import ClientSettings
from tidelog.transport.connection import Connection

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("timestamp_ms", [5_000, 1_000_000])
def test_a_record_that_comes_while_a_time_is_looked_up_is_not_left_out(timestamp_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is so new when the first question is asked, and something is when the last one is."""

    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        original: Callable[..., Any] = Connection.call
        questions: list[str] = []

        async def call(self: Connection, attempt: Any, **options: Any) -> Any:
            answer = await original(self, attempt, **options)
            if isinstance(answer, list):
                questions.append("offsets")
                if len(questions) == 1:
                    await log.produce("orders", "the new one", partition=0, timestamp_ms=5_000)
            return answer

        monkeypatch.setattr(Connection, "call", call)
        async with log.consume("orders", from_=f"@{timestamp_ms}", partitions=[0]) as consumer:
            assert [record.text() for record in await consumer.chunk()] == ["the new one"]
        assert len(questions) == 2

    with_records(test)


@pytest.mark.parametrize("start", [Earliest(), Latest(), LastRecords(3), SinceTimestamp(1_003)], ids=str)
def test_the_error_of_one_partition_is_answered_beside_the_others(start: Start) -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.read_faults["orders", 1] = Corrupt("damaged")
        connection = Connection([broker.address], ClientSettings())
        await connection.open()
        try:
            found = await starting_offsets(connection, await connection.route("orders"), start, None)
            ranges = await ranges_or_errors(connection, await connection.route("orders"), [0, 1, 2])
            with pytest.raises(Corrupt):
                await offset_ranges(connection, await connection.route("orders"))
            assert await ranges_or_errors(connection, await connection.route("orders"), []) == {}
        finally:
            await connection.close()
        for answers in (found, ranges):
            assert [partition for partition, answer in answers.items() if isinstance(answer, TidelogError)] == [1]

    with_records(test)


def test_the_last_none_are_none_and_the_last_of_an_empty_partition_are_none() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        assert await read(log, from_="-0") == []
        broker.create_topic("empty", 2)
        assert [record async for record in log.consume("empty", from_=-10, until="end")] == []

    with_records(test)


def test_no_question_is_asked_about_nothing() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.read_faults = {("orders", partition): Corrupt("damaged") for partition in range(3)}
        with pytest.raises(Corrupt) as raised:
            await read(log, from_="-1")
        assert raised.value.__notes__ == ["3 partitions of orders were not read to their ends: 0, 1, 2."]

    with_records(test)


class Once(dict[tuple[str, int], TidelogError]):
    """Each fault passes when it has been met."""

    def get(self, key: Any, default: Any = None) -> Any:
        return self.pop(key, default)


UNHEARD_OF = [UnknownPartition("orders has the partitions 0 to 0"), UnknownTopic("there is no topic orders")]


@pytest.mark.parametrize("error", UNHEARD_OF, ids=lambda error: error.code)
def test_a_broker_that_has_not_heard_of_a_new_partition_yet_is_asked_again(error: TidelogError) -> None:
    """The route, from another broker, has it already."""

    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.read_faults = Once({("orders", 1): error})
        everything = await read(log, from_="earliest")
        assert {partition for partition, _, _ in everything} == {0, 1, 2}
        assert not broker.read_faults

    with_records(test)


def test_a_topic_that_a_fresh_route_has_not_either_is_gone() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        connection = Connection([broker.address], ClientSettings(retry_pause_ms=1, retry_pause_ms_max=5))
        await connection.open()
        try:
            route = await connection.route("orders")
            broker.read_faults = {("orders", number): UnknownTopic("there is no topic orders") for number in range(3)}
            broker.topics.pop("orders")
            answers = await ranges_or_errors(connection, route, [0, 1, 2])
            assert {type(answer) for answer in answers.values()} == {UnknownTopic}
        finally:
            await connection.close()

    with_records(test)
