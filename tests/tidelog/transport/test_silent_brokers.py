"""Where no broker answers, an error names them all, and not just the one that was asked last."""

from __future__ import annotations

import asyncio

import pytest

import tidelog
from metadata.errors import NoLeader, TidelogError, Unavailable
from tests.kit.tidelog.producing import impatient, quick, time_is_up, until
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.settings import ClientSettings
from tidelog.transport.connection import SILENT_NAMED_MAX, Connection


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_record_that_no_broker_took_says_which_were_tried() -> None:
    async def run() -> None:
        async with running(SmallBroker("a")) as a, running(SmallBroker("b")) as b:
            a.create_topic("orders", 1)
            b.join(a)
            a.leaders["orders", 0] = "a"
            async with tidelog.connect(f"{a.address},{b.address}", **quick()) as log:
                await log.produce("orders", "before", partition=0)
                await a.stop()
                await b.stop()
                delivery = await log.send("orders", "late", partition=0)
                queue = log._producer._topics.books["orders"].queues[0]
                await until(lambda: "no answer from" in str(queue.last_trouble))
                time_is_up(log)
                with pytest.raises(TidelogError) as met:
                    await delivery
                assert a.host_port in met.value.message
                assert b.host_port in met.value.message
                impatient(log, request_timeout_ms=1000)
                with pytest.raises(Unavailable) as asked:
                    await log.topics.list()
                assert a.host_port in asked.value.message
                assert b.host_port in asked.value.message
                await a.start()
                await b.start()

    asyncio.run(run())


def _connection(*host_ports: str) -> Connection:
    connection = Connection([f"grpc://{host_port}" for host_port in host_ports], ClientSettings())
    connection._seeds = list(host_ports)
    return connection


def _silent(connection: Connection, *host_ports: str) -> None:
    for host_port in host_ports:
        connection._reachability.can_not_connect(host_port, 0.0)


def test_the_others_are_named_only_where_none_answers_and_not_all_of_many() -> None:
    met = Unavailable("a:1: can't connect", address="a:1")
    connection = _connection("a:1", "b:1", "c:1")
    _silent(connection, "a:1", "b:1")
    assert connection.naming_all_that_are_silent(met) is met, "c:1 may answer"
    _silent(connection, "c:1")
    assert connection.naming_all_that_are_silent(met).message == "a:1: can't connect; no answer from b:1, c:1 either"
    no_leader = NoLeader("a:1: no leader", address="a:1")
    assert connection.naming_all_that_are_silent(no_leader) is no_leader, "it has answered"
    alone = _connection("a:1")
    _silent(alone, "a:1")
    assert alone.naming_all_that_are_silent(met) is met
    many = [f"b{number}:1" for number in range(SILENT_NAMED_MAX + 3)]
    crowd = _connection("a:1", *many)
    _silent(crowd, "a:1", *many)
    assert crowd.naming_all_that_are_silent(met).message.endswith("b4:1 and 3 more either")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_brokers_that_say_why_they_can_not_work_are_not_called_silent() -> None:
    def can_not(method: str) -> None:
        if method == "ListTopics":
            raise Unavailable("the metadata store does not answer")

    async def run() -> None:
        async with running(SmallBroker("a")) as a, running(SmallBroker("b")) as b:
            a.create_topic("orders", 1)
            b.join(a)
            async with tidelog.connect(f"{a.address},{b.address}", **quick()) as log:
                await log.topics.list()
                a.before_call = b.before_call = can_not
                impatient(log, request_timeout_ms=1000)
                with pytest.raises(Unavailable, match=r"the metadata store does not answer$") as met:
                    await log.topics.list()
                assert "no answer" not in met.value.message

    asyncio.run(run())
