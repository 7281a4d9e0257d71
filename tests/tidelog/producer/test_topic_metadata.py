"""Topics that change while records are sent: partitions are added, topics deleted and recreated, leaders move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tidelog
from metadata.errors import NotLeader, OutcomeUnknown, Stopping, TidelogError, Unavailable, UnknownPartition, UnknownTopic
from segments.records.header import BatchHeader
from segments.records.partitioner import partition_of
from tests.kit.tidelog.producing import impatient, outcome_of, quick, until, with_broker
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.producer import topic_metadata
from tidelog.producer.producer import Producer
from tidelog.transport.routes import TopicRoute

pytestmark = pytest.mark.slow


def asked(broker: SmallBroker, method: str) -> list[str]:
    """Counts the calls of this method from now on."""
    calls: list[str] = []
    before = broker.before_call

    def count(name: str) -> None:
        if name == method:
            calls.append(name)
        before(name)

    broker.before_call = count
    return calls


def producer_of(log: tidelog.Client) -> Producer:
    return log._producer


# ── partitions are added ──


def test_records_without_a_key_spread_over_partitions_that_were_added() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick(topic_age_ms_max=20)) as log:
            assert {(await log.produce("orders", n)).partition for n in range(8)} == {0, 1}
            broker.topics["orders"].partition_count = 5
            seen: set[int] = set()
            while seen < {0, 1, 2, 3, 4}:
                seen.add((await log.produce("orders", "x")).partition)

    with_broker(test, partitions=2)


def test_records_with_a_key_go_by_all_partitions_from_then_on() -> None:
    async def test(broker: SmallBroker) -> None:
        keys = [b"%d" % n for n in range(40)]
        async with tidelog.connect(broker.address, **quick(topic_age_ms_max=20)) as log:
            for key in keys:
                assert (await log.produce("orders", "x", key=key)).partition == partition_of(key, 2)
            broker.topics["orders"].partition_count = 7
            while len(producer_of(log)._topics.books["orders"].queues) < 7:  # one that was asked for before may have the old count
                await log.produce("orders", "x")
            for key in keys:
                assert (await log.produce("orders", "x", key=key)).partition == partition_of(key, 7)

    with_broker(test, partitions=2)


def test_a_partition_that_was_added_can_be_named_at_once() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            await log.produce("orders", 1, partition=0)
            broker.topics["orders"].partition_count = 5
            assert (await log.produce("orders", 1, partition=4)).offset == 0
            with pytest.raises(UnknownPartition, match="partitions 0 to 4; 5 was asked for"):
                await log.produce("orders", 1, partition=5)

    with_broker(test, partitions=2)


def test_a_partition_that_was_added_right_after_it_was_refused_can_be_named() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick(retry_pause_ms_max=60_000)) as log:
            with pytest.raises(UnknownPartition):
                await log.produce("orders", 1, partition=4)
            broker.topics["orders"].partition_count = 5
            assert (await log.produce("orders", 1, partition=4)).offset == 0
            assert broker.asked_for_topics[-1].fresh, "the broker looks at the metadata store"

    with_broker(test, partitions=2)


def test_a_partition_may_be_named_again_where_no_broker_knows_whether_it_was_added() -> None:
    """A broker that is cut off from the metadata store does not know it."""

    async def test(broker: SmallBroker) -> None:
        def refuse(method: str) -> None:
            if method == "GetTopic" and broker.asked_for_topics[-1].refuse_outdated:
                raise Unavailable("this broker has not heard yet of the present state of topic orders", is_outdated=True)

        async with tidelog.connect(broker.address, **quick()) as log:
            await log.produce("orders", 1, partition=0)
            impatient(log, request_timeout_ms=500)
            broker.before_call = refuse
            with pytest.raises(Unavailable):
                await log.produce("orders", 1, partition=4)

    with_broker(test, partitions=2)


def test_a_program_that_names_a_wrong_partition_again_and_again_does_not_ask_the_cluster_each_time() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick(retry_pause_ms=200)) as log:
            calls = asked(broker, "GetTopic")
            clock = asyncio.get_running_loop().time
            began_s = clock()
            for _ in range(3):
                sent = [log.produce("orders", 1, partition=9) for _ in range(50)]
                refused = await asyncio.gather(*sent, return_exceptions=True)
                assert {type(error) for error in refused} == {UnknownPartition}
            assert len(calls) <= 2 + (clock() - began_s) / 0.2, "one question opens the topic, and looks come 200 ms apart"

    with_broker(test)
    with_broker(test)


# ── topics are deleted and recreated ──


def test_a_recreated_topic_takes_records_from_offset_zero_under_a_new_producer_id() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick(topic_age_ms_max=20)) as log:
            for n in range(7):
                await log.produce("orders", n, partition=0)
            ids = broker.producer_ids
            broker.delete_topic("orders")
            broker.create_topic("orders", 4)
            assert [(await log.produce("orders", n, partition=0)).offset for n in range(3)] == [0, 1, 2]
            await until(lambda: len(producer_of(log)._topics.books["orders"].queues) == 4)
            assert [(await log.produce("orders", n, partition=0)).offset for n in range(3)] == [3, 4, 5]
            assert broker.producer_ids == ids + 1
            assert (await log.produce("orders", "x", partition=3)).offset == 0
        assert [int(value or b"") for value in broker.partitions["orders", 0].values()] == [0, 1, 2, 0, 1, 2]

    with_broker(test, partitions=2)


def test_in_flight_records_of_a_recreated_topic_fail_and_unsent_ones_go_to_the_new_one() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick(linger_ms=10_000)) as log:
            broker.answering.clear()
            in_flight = await log.send("orders", "in flight", partition=0)
            await until(lambda: bool(broker.requests))
            waiting = await log.send("orders", "waiting", partition=0)
            await broker.stop()
            broker.delete_topic("orders")
            broker.create_topic("orders", 2)
            broker.answering.set()
            await broker.start()
            error = await outcome_of(in_flight)
            assert isinstance(error, OutcomeUnknown)
            assert "1 record(s) for orders/0: the topic was deleted and created again" in error.message
            assert (await waiting).offset == 0
        assert broker.values("orders") == [b"waiting"]

    with_broker(test)


def test_a_record_for_a_partition_that_the_new_topic_does_not_have_fails_as_unknown_partition() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick(retry_pause_ms_max=1_000)) as log:
            await log.produce("orders", 0, partition=4)
            broker.delete_topic("orders")
            broker.create_topic("orders", 2)
            with pytest.raises(UnknownPartition):
                await log.produce("orders", 1, partition=4)
            await until(lambda: len(producer_of(log)._topics.books["orders"].queues) == 2)
            with pytest.raises(UnknownPartition, match="partitions 0 to 1; 4 was asked for"):
                await log.send("orders", 1, partition=4)
            assert {(await log.produce("orders", n)).partition for n in range(4)} == {0, 1}
            assert producer_of(log)._accumulator.buffered_bytes == 0

    with_broker(test, partitions=5)


def test_a_send_that_waits_for_room_fails_and_leaks_none_when_its_partition_vanishes() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick(buffer_bytes_max=2_000, batch_bytes_max=1_000)) as log:
            broker.answering.clear()
            for _ in range(2):
                await log.send("orders", b"x" * 900, partition=0)
            waiting = asyncio.create_task(log.send("orders", b"x" * 900, partition=4))
            await until(lambda: bool(producer_of(log)._room.waiting))
            broker.delete_topic("orders")
            broker.create_topic("orders", 2)
            await producer_of(log)._topics.open("orders")
            broker.answering.set()
            with pytest.raises(UnknownPartition):
                await waiting
            await log.flush()
            assert producer_of(log)._accumulator.buffered_bytes == 0

    with_broker(test, partitions=5)


def test_after_a_topic_was_deleted_sending_to_it_is_refused_at_once_until_it_is_there_again() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            await log.produce("orders", 1)
            broker.delete_topic("orders")
            with pytest.raises(UnknownTopic):
                await log.produce("orders", 2)
            await until(lambda: producer_of(log)._topics.books["orders"].is_gone)
            requests = len(broker.requests)
            with pytest.raises(UnknownTopic, match="there is no topic orders"):
                await log.send("orders", 3)
            assert len(broker.requests) == requests
            broker.create_topic("orders", 2)
            assert (await log.produce("orders", 4)).offset == 0

    with_broker(test)


def test_topics_that_are_used_no_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_metadata, "FORGETS_EVERY_S", 0.0)

    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            producer = producer_of(log)
            for n in range(30):
                name = f"short-lived-{n}"
                broker.create_topic(name, 2)
                await log.produce(name, n)
                broker.delete_topic(name)
                with pytest.raises(UnknownTopic):
                    await log.produce(name, n)
                await until(lambda book=producer._topics.books[name]: book.is_gone)  # type: ignore[misc]
            assert len(producer._topics.books) <= 2
            assert len(producer._accumulator._queues) <= 4
            await log.produce("orders", 1, partition=0)
            monkeypatch.setattr(topic_metadata, "IDLE_S", -1_000.0)
            producer._topics._settings = tidelog.ClientSettings(delivery_timeout_ms=6)
            await until(lambda: producer._topics.books["orders"].used_s + 0.012 < asyncio.get_running_loop().time())
            broker.create_topic("other", 2)
            await log.produce("other", 1)
            assert set(producer._topics.books) == {"other"}
            assert (await log.produce("orders", 2, partition=0)).offset == 1, "and are learnt again when they are"
        assert broker.partitions["orders", 0].values() == [b"1", b"2"]

    with_broker(test)


# ── who leads, and where ──


def two_brokers(test: Any) -> None:
    async def run() -> None:
        async with running(SmallBroker("a")) as a, running(SmallBroker("b")) as b:
            a.create_topic("orders", 2)
            b.join(a)
            a.leaders |= {("orders", 0): "a", ("orders", 1): "b"}
            async with asyncio.timeout(60):
                await test(a, b)

    asyncio.run(run())


def test_a_leader_that_comes_back_at_another_port_is_found() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick()) as log:
            await log.produce("orders", 1, partition=1)
            await b.stop()
            waiting = await log.send("orders", 2, partition=1)
            b.port = 0
            await b.start()
            assert (await waiting).offset == 1
            assert (await log.produce("orders", 3, partition=1)).offset == 2

    two_brokers(test)


def test_when_the_broker_that_was_reached_is_gone_the_others_are_asked() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick()) as log:
            await log.produce("orders", 1, partition=0)
            await a.stop()
            b.leaders["orders", 0] = "b"
            del b.brokers["a"]
            assert (await log.produce("orders", 2, partition=0)).offset == 1
            a.brokers["a"] = a
            await a.start()

    two_brokers(test)


def test_the_stream_to_a_broker_that_leads_nothing_any_more_ends() -> None:
    async def test(a: SmallBroker, b: SmallBroker) -> None:
        async with tidelog.connect(a.address, **quick()) as log:
            for partition in range(2):
                await log.produce("orders", 1, partition=partition)
            assert len(producer_of(log)._streams) == 2
            a.leaders["orders", 1] = "a"
            assert (await log.produce("orders", 2, partition=1)).offset == 1
            await until(lambda: len(producer_of(log)._streams) == 1)
            await until(lambda: sum("produce stream" in task.get_name() for task in asyncio.all_tasks()) == 1)
            a.leaders["orders", 1] = "b"
            assert (await log.produce("orders", 3, partition=1)).offset == 2

    two_brokers(test)


# ── the cluster is asked, but not flooded ──


def test_while_no_broker_answers_at_most_one_lookup_of_a_topic_is_pending() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick(topic_age_ms_max=1)) as log:
            await log.produce("orders", 0, partition=0)
            await broker.stop()
            deliveries = []
            for n in range(200):
                deliveries.append(await log.send("orders", n, partition=n % 3))
                await asyncio.sleep(0)
            questions = [task for task in asyncio.all_tasks() if task.get_name() == "route of orders"]
            assert len(questions) <= 1
            await broker.start()
            for delivery in deliveries:
                await delivery

    with_broker(test)


def test_many_who_open_a_topic_at_once_share_one_question_and_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            calls = asked(broker, "GetTopic")
            await asyncio.gather(*(log.produce("orders", n) for n in range(100)))
            assert len(calls) == 1

            def stop(method: str) -> None:
                raise Stopping("the broker is shutting down")

            questions: list[str] = []
            ask = log._connection._ask_for_route

            async def count(topic: str, at: str | None, *, from_store: bool, refuses_outdated: bool) -> TopicRoute:
                questions.append(topic)
                return await ask(topic, at, from_store=from_store, refuses_outdated=refuses_outdated)

            monkeypatch.setattr(log._connection, "_ask_for_route", count)
            impatient(log, retry_pause_ms=120_000, request_timeout_ms=5_000)  # a pause longer than the call
            broker.before_call = stop
            broker.create_topic("others", 1)
            outcomes = await asyncio.gather(*(outcome_of(log.produce("others", n)) for n in range(100)))
            assert {type(outcome) for outcome in outcomes} == {Stopping}
            assert len({id(outcome) for outcome in outcomes}) == 100, "each gets an instance of its own"
            assert questions == ["others"], "not one after the other"
            broker.before_call = lambda method: None

    with_broker(test)


def test_a_topic_that_was_created_meanwhile_is_not_refused_for_an_older_question() -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            asking = asyncio.create_task(outcome_of(log.produce("new", 1)))
            created = asyncio.Event()

            def create_behind_the_answer(method: str) -> None:
                if method == "GetTopic" and not created.is_set():
                    created.set()
                    raise UnknownTopic("there is no topic new")

            broker.before_call = create_behind_the_answer
            await created.wait()
            broker.create_topic("new", 1)
            later = await outcome_of(log.produce("new", 2))
            assert isinstance(await asking, UnknownTopic)
            assert isinstance(later, tidelog.Ack)

    with_broker(test)


@pytest.mark.parametrize("refusal", [NotLeader("another leads"), UnknownTopic("it is gone"), UnknownPartition("it is gone")])
def test_an_answer_that_says_that_a_topic_changed_makes_the_client_ask(refusal: TidelogError) -> None:
    async def test(broker: SmallBroker) -> None:
        async with tidelog.connect(broker.address, **quick()) as log:
            await log.produce("orders", 1, partition=0)
            calls, refusals = asked(broker, "GetTopic"), [refusal]

            def refuse(topic: str, partition: int, header: BatchHeader) -> None:
                if refusals:
                    raise refusals.pop()

            broker.before_append = refuse
            await outcome_of(log.produce("orders", 2, partition=0))
            await until(lambda: bool(calls))

    with_broker(test)


def test_a_cluster_that_can_not_be_asked_does_not_stop_what_goes_on() -> None:
    async def test(broker: SmallBroker) -> None:
        def refuse(method: str) -> None:
            if method in ("GetTopic", "GetCluster"):
                raise Unavailable("the metadata store does not answer")

        async with tidelog.connect(broker.address, **quick(topic_age_ms_max=1)) as log:
            await log.produce("orders", 0, partition=0)
            impatient(log, request_timeout_ms=50)
            broker.before_call = refuse
            for n in range(1, 100):
                assert (await log.produce("orders", n, partition=0)).offset == n

    with_broker(test)
