"""Members of a group in programs without an event loop."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

import tidelog
from metadata.errors import InvalidArgument
from metadata.groups.model import Generation
from tidelog.group.consumer import GroupConsumer
from tidelog.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.slow

RECORDS = 30


def filled(log: tidelog.BlockingClient, topic: str) -> None:
    log.topics.create(topic, partitions=3)
    log.produce_many(topic, [tidelog.Message(n, partition=n % 3) for n in range(RECORDS)])


def test_a_group_is_read_committed_and_gone_on_with(tidelog_broker: BrokerProcess) -> None:
    with tidelog.connect_sync(tidelog_broker.http_url) as log:
        filled(log, "gb-orders")
        values = []
        with log.consume("gb-orders", group="gb") as consumer:
            for record in consumer:
                values.append(record.json())
                if len(values) == 12:
                    break
            assert sum(consumer.positions.values()) == 12
            assert consumer.assignment() == [("gb-orders", n) for n in range(3)]
            values += [record.json() for record in consumer.chunk()]
        committed = sum(found.offset for found in log.groups.offsets("gb"))
        assert committed == len(values)
        values += [record.json() for record in log.consume("gb-orders", group="gb", until="end")]
        assert sorted(values) == list(range(RECORDS))


def test_the_record_in_hand_comes_again_after_an_error(tidelog_broker: BrokerProcess) -> None:
    with tidelog.connect_sync(tidelog_broker.http_url) as log:
        filled(log, "gb-failed")
        with suppress(KeyError), log.consume("gb-failed", group="gb-failed") as consumer:
            for record in consumer:
                if record.offset == 4:
                    raise KeyError
        assert {found.partition: found.offset for found in log.groups.offsets("gb-failed")}[record.partition] == 4


def test_callbacks_may_use_the_client_and_seek_commit_and_pause_are_there(tidelog_broker: BrokerProcess) -> None:
    with tidelog.connect_sync(tidelog_broker.http_url) as log:
        filled(log, "gb-callbacks")
        reported: list[str] = []

        def assigned(partitions: list[tuple[str, int]]) -> None:
            assert threading.current_thread().name != "tidelog client"
            reported.append("assigned")
            for partition in partitions:
                consumer.seek(partition, 8)

        def revoked(partitions: list[tuple[str, int]]) -> None:
            reported.append("revoked")
            consumer.commit(dict.fromkeys(partitions, 9))

        options = {"on_assigned": assigned, "on_revoked": revoked, "auto_commit": False}
        with log.consume("gb-callbacks", group="gb-callbacks", **options) as consumer:  # type: ignore[call-overload]
            values: list[int] = []
            while len(values) < 6:
                values += [record.json() for record in consumer.chunk()]
            assert sorted(values) == list(range(24, 30))
            assert set(consumer.lag().values()) == {0}
            consumer.commit()
            assert set(consumer.committed().values()) == {10}
            consumer.pause()
            assert len(consumer.paused()) == 3
            consumer.resume()
        assert reported == ["assigned", "revoked"]
        assert {found.offset for found in log.groups.offsets("gb-callbacks")} == {9}
        assert log.groups.describe("gb-callbacks").generation > Generation(0)


def test_an_async_callback_of_a_blocking_consumer_is_refused(tidelog_broker: BrokerProcess) -> None:
    async def revoked(partitions: list[tuple[str, int]]) -> None:
        raise AssertionError("no caller awaits it")

    with tidelog.connect_sync(tidelog_broker.http_url) as log, pytest.raises(InvalidArgument, match="on_revoked is an async func"):
        log.consume("gb-async", group="gb-async", on_revoked=revoked)


def test_the_twin_has_every_public_name_of_the_original() -> None:
    from tidelog.blocking.readers import BlockingGroupConsumer

    asynchronous = {"aclose", "close", "close_soon", "take"}
    names = {name for name in vars(GroupConsumer) if not name.startswith("_")} - asynchronous
    assert names <= set(vars(BlockingGroupConsumer))
