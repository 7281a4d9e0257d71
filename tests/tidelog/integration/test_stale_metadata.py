"""A broker that is cut off from etcd goes on answering who leads, from its last metadata. Clients find the next leader anyway."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import tidelog
from gateway.proto import admin_pb2
from tests.kit.tidelog.producing import quick, until
from tests.kit.tidelog.small_broker import SmallBroker, running

pytestmark = pytest.mark.slow


@asynccontextmanager
async def a_cut_off_from_etcd_while_b_leads() -> AsyncIterator[tuple[SmallBroker, SmallBroker, SmallBroker]]:
    a, b, c = SmallBroker("a"), SmallBroker("b"), SmallBroker("c")
    b.join(a)
    c.join(a)
    async with AsyncExitStack() as stack:
        for broker in (a, b, c):
            await stack.enter_async_context(running(broker))
        a.create_topic("orders", 1)
        a.leaders["orders", 0] = "b"
        a.leaders, a.leader_epochs = dict(a.leaders), defaultdict(int, a.leader_epochs)
        yield a, b, c


@pytest.mark.parametrize("waits", [False, True], ids=["it_refuses_what_it_does_not_lead", "it_waits_for_the_former_leader"])
def test_a_producer_finds_the_next_leader_though_the_first_broker_names_the_dead_one(waits: bool) -> None:
    async def test() -> None:
        async with a_cut_off_from_etcd_while_b_leads() as (a, b, c):
            if waits:
                a.forwards, a.led["orders", 0] = True, asyncio.Event()
            settings = quick(retry_pause_ms_max=100)
            async with tidelog.connect(a.address, b.address, c.address, **settings) as log:
                await log.produce("orders", "one", partition=0)
                await b.stop()
                b.move("orders", 0, "c")
                assert (await log.produce("orders", "two", partition=0)).offset == 1
                assert len(c.requests) == 1, "the next leader was asked"

    asyncio.run(test())


def test_a_reader_finds_the_next_leader_though_the_first_broker_names_the_dead_one() -> None:
    async def test() -> None:
        async with a_cut_off_from_etcd_while_b_leads() as (a, b, c):
            settings = quick(fetch_wait_ms_max=300)
            async with tidelog.connect(a.address, b.address, c.address, **settings) as log:
                await log.produce("orders", "one", partition=0)
                await b.stop()
                b.move("orders", 0, "c")
                assert [record.value async for record in log.consume("orders", follow=False)] == [b"one"]

    asyncio.run(test())


def test_a_broker_that_reports_old_metadata_is_asked_after_the_others() -> None:
    async def test() -> None:
        async with a_cut_off_from_etcd_while_b_leads() as (a, b, c):
            a.metadata_age_ms = 60_000
            asked: list[str] = []
            for broker in (a, b, c):
                broker.before_call = lambda method, name=broker.name: asked.append(name) if method == "GetTopic" else None  # type: ignore[misc]
            async with tidelog.connect(a.address, b.address, c.address, **quick()) as log:
                for _ in range(2):
                    await log._connection.route("orders", fresh=True)
            assert asked == ["a", "b"]

    asyncio.run(test())


def test_a_producer_finds_the_next_leader_though_the_first_broker_names_one_that_refuses() -> None:
    async def test() -> None:
        async with a_cut_off_from_etcd_while_b_leads() as (a, b, c):
            settings = quick(retry_pause_ms_max=100)
            async with tidelog.connect(a.address, b.address, c.address, **settings) as log:
                await log.produce("orders", "one", partition=0)
                b.move("orders", 0, "c")
                assert (await log.produce("orders", "two", partition=0)).offset == 1
                assert len(c.requests) == 1

    asyncio.run(test())


def forget_that_it_was_made_again(broker: SmallBroker, former: admin_pb2.Topic) -> None:
    """The broker describes the former topic, as one does that has not heard of its deletion yet."""
    broker.topics, broker.leader_epochs = {former.name: former}, defaultdict(int)


def test_a_reader_stays_in_a_topic_that_was_made_again_though_a_broker_describes_the_former_one() -> None:
    async def test() -> None:
        async with a_cut_off_from_etcd_while_b_leads() as (a, b, c):
            former = a.topics["orders"]
            b.topics.pop("orders")
            b.topics_made = 7
            b.create_topic("orders", 1)
            b.leader_epochs["orders", 0] = 8
            a.leader_epochs = b.leader_epochs
            settings = quick(topic_age_ms_max=50, fetch_wait_ms_max=300)
            async with tidelog.connect(a.address, b.address, c.address, **settings) as log:
                await log.produce("orders", "one", partition=0)
                records = aiter(log.consume("orders"))
                assert (await anext(records)).value == b"one"
                forget_that_it_was_made_again(a, former)
                a.asked_for_topics.clear()
                async with asyncio.timeout(30):
                    await until(lambda: bool(a.asked_for_topics))
                    await asyncio.sleep(0.2)
                    await log.produce("orders", "two", partition=0)
                    assert (await anext(records)).value == b"two"

    asyncio.run(test())
