"""What happens to a topic while it is read: partitions come, fail and move; it is deleted, and made again; its reader is slow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tidelog
from metadata.errors import (
    Corrupt,
    InvalidArgument,
    NoLeader,
    NotAuthorized,
    OutOfRange,
    SessionFenced,
    TidelogError,
    Unavailable,
    UnknownTopic,
)
from segments.records.columns import encode_records
from tests.kit.tidelog.consuming import QUICK, read, read_until_it_fails, until, waits_for_its_caller, with_records
from tests.kit.tidelog.producing import impatient
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.consumer import fetch_state, fetcher, route_watcher
from tidelog.settings import SettingChanges

pytestmark = pytest.mark.slow

# ── partitions that are added ──


def test_partitions_that_are_added_are_read_from_their_start() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders", from_="latest")
        reading = asyncio.create_task(consumer.chunk())
        await _until_fetching(broker)
        broker.topics["orders"].partition_count = 5
        for n in range(20):
            _append(broker, 3 + n % 2, 100 + n)
        values = [record.json() for record in await reading]
        while len(values) < 20:
            values += [record.json() for record in await consumer.chunk()]
        assert sorted(values) == list(range(100, 120))
        assert consumer.positions == {3: 10, 4: 10}
        await consumer.aclose()

    with_records(test, topic_age_ms_max=100, fetch_wait_ms_max=50)


def test_an_added_partition_whose_start_was_trimmed_already_is_read_from_what_is_left() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders", from_="latest")
        reading = asyncio.create_task(consumer.chunk())
        await _until_fetching(broker)
        broker.topics["orders"].partition_count = 4
        for n in range(4):
            _append(broker, 3, n)
        held = broker.partitions["orders", 3]
        del held.batches[:2]
        held.start = 2
        assert [record.offset for record in await reading + await consumer.chunk()] == [2, 3]
        await consumer.aclose()

    with_records(test, topic_age_ms_max=100, fetch_wait_ms_max=50)


@pytest.mark.parametrize("silent", [False, True], ids=["the leader refuses", "the leader keeps silent"])
def test_a_topic_whose_rights_are_all_taken_ends_alone(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fetch_state, route_watcher):
        monkeypatch.setattr(module, "DENIED_S", 0.2)
    monkeypatch.setattr(fetcher, "SILENCE_S", 0.05)

    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.create_topic("payments", 1)
        consumer = log.consume(["orders", "payments"], from_="latest")
        reading = asyncio.create_task(consumer.chunk())
        await _until_fetching(broker)
        if silent:
            broker.fetching.clear()
        broker.denied.add("payments")
        await until(lambda: bool(consumer.errors))
        ((partition, error),) = consumer.errors.items()
        assert partition == ("payments", 0)
        assert isinstance(error, NotAuthorized)
        if silent:
            await asyncio.sleep(0.5)  # longer than DENIED_S: the refusals are none of the other topic
        assert list(consumer.errors) == [("payments", 0)]
        broker.fetching.set()
        _append(broker, 0, 100)
        assert [record.json() for record in await reading] == [100]
        asked = len(broker.asked_for_topics)
        await asyncio.sleep(0.1)
        again = {each.name for each in broker.asked_for_topics[asked + 1 :]}
        assert "payments" not in again, "a denied topic is asked for no more"
        broker.denied.add("orders")
        with pytest.raises(NotAuthorized):
            await consumer.chunk()
        await consumer.aclose()

    with_records(test, topic_age_ms_max=20, fetch_wait_ms_max=20)


@pytest.mark.parametrize("options", [{"partitions": [0]}, {"from_": {0: 10}}], ids=str)
def test_a_consumer_of_named_partitions_gets_no_others(options: dict[str, object]) -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.topics["orders"].partition_count = 4
        for partition in (3, 0):
            _append(broker, partition, 100)
        async with log.consume("orders", **{"from_": "10", **options}) as consumer:  # type: ignore[call-overload]
            assert [record.partition for record in await consumer.chunk()] == [0]
            asked: list[str] = []
            broker.before_call = asked.append
            reading = asyncio.create_task(consumer.chunk())
            await until(lambda: asked.count("GetTopic") >= 3)
            await _until_fetching(broker)
            assert not reading.done()
            _append(broker, 0, 101)
            assert [record.json() for record in await reading] == [101]

    with_records(test, topic_age_ms_max=20, fetch_wait_ms_max=20)


def _append(broker: SmallBroker, partition: int, value: int) -> None:
    """Before any client has heard of the partition."""
    broker.partitions["orders", partition].append(encode_records([(None, b"%d" % value, (), 0)]))


async def _until_fetching(broker: SmallBroker) -> None:
    """A fetch that begins from now on has reached the broker."""
    fetches = broker.fetches
    await until(lambda: broker.fetches >= fetches + 2)


# ── a topic that is deleted, and made again ──


def _make_again(broker: SmallBroker, records: int = 100) -> None:
    """Another topic of the same name, with records at more offsets than the old one had."""
    broker.delete_topic("orders")
    broker.create_topic("orders", 3)
    for partition in range(3):
        broker.partitions["orders", partition].append(encode_records([(None, b"-1", (), 0)] * records))


def _check_made_again(error: TidelogError) -> None:
    assert isinstance(error, UnknownTopic)
    assert "topic orders was deleted and made again while it was read" in error.message
    assert (error.details["topic_id"], error.details["new_topic_id"]) == (f"{1:032x}", f"{2:032x}")
    assert "read it again" in error.hint


def test_a_consumer_that_waits_for_records_does_not_read_on_in_a_topic_that_was_made_again() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders")
        values: list[int] = []
        while len(values) < 30:
            values += [record.json() for record in await consumer.chunk()]
        await _until_fetching(broker)
        _make_again(broker)
        await broker.appended()
        more, error = await read_until_it_fails(consumer)
        assert sorted(values + more) == list(range(30))
        _check_made_again(error)

    with_records(test, fetch_wait_ms_max=20)


@pytest.mark.parametrize("follow", [True, False])
def test_nor_does_who_was_busy_with_earlier_records_meanwhile(follow: bool) -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders", follow=follow)
        values = [record.json() for record in await consumer.chunk()]
        await until(lambda: waits_for_its_caller(consumer))
        _make_again(broker)
        more, error = await read_until_it_fails(consumer)
        assert len(set(values + more)) == len(values + more) < 30
        assert -1 not in more
        _check_made_again(error)

    with_records(test, read_ahead_bytes_max=100, batch_bytes_max=27)


@pytest.mark.parametrize("records", [9, 10, 11])
def test_nor_does_it_matter_how_long_the_new_topic_is(records: int) -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders", partitions=[0])
        values = [record.json() for record in await consumer.chunk()]
        await until(lambda: waits_for_its_caller(consumer))
        _make_again(broker, records)
        more, error = await read_until_it_fails(consumer)
        assert values + more == list(range(0, 3 * len(values + more), 3))
        _check_made_again(error)

    with_records(test, read_ahead_bytes_max=100, batch_bytes_max=27)


def test_nor_does_who_lost_the_broker_meanwhile() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders")
        values: list[int] = []
        while len(values) < 30:
            values += [record.json() for record in await consumer.chunk()]
        await _until_fetching(broker)
        await broker.stop()
        _make_again(broker)
        await broker.start()
        more, error = await read_until_it_fails(consumer)
        assert sorted(values + more) == list(range(30))
        _check_made_again(error)

    with_records(test, fetch_wait_ms_max=100)


def test_a_smaller_topic_of_the_same_name_is_not_taken_for_lost_records() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders", auto_offset_reset="earliest")
        while (await consumer.chunk())[-1].offset < 9:
            pass
        await broker.stop()
        _make_again(broker, records=2)
        await broker.start()
        _, error = await read_until_it_fails(consumer)
        _check_made_again(error)

    with_records(test)


def test_a_topic_that_is_deleted_ends_the_reading_after_what_was_fetched() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders")
        values = [record.json() for record in await consumer.chunk()]
        await _until_fetching(broker)
        broker.delete_topic("orders")
        await broker.appended()
        more, error = await read_until_it_fails(consumer)
        assert sorted(values + more) == list(range(30))
        assert isinstance(error, UnknownTopic)
        assert "was deleted while it was read" in error.message

    with_records(test, fetch_wait_ms_max=20)


def test_a_broker_that_has_not_heard_of_the_topic_yet_is_asked_again() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.read_faults["orders", 1] = UnknownTopic("there is no topic orders")
        values = []
        async for record in log.consume("orders", partitions=[0, 1, 2], from_="0"):
            values.append(record.json())
            if len(values) == 20:
                broker.read_faults.clear()
            if len(values) == 30:
                break
        assert sorted(values) == list(range(30))

    with_records(test)


# ── partitions that fail ──


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("from_", ["earliest", "0", "@0"])
def test_a_damaged_partition_is_reported_and_does_not_stop_the_others(
    from_: str, follow: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        damage = Corrupt("wal/7/3 is damaged", hint="Read on from offset 8.", next_offset=8)
        broker.read_faults["orders", 1] = damage
        consumer = log.consume("orders", from_=from_, follow=follow)
        values = [record.json() for _ in range(2) for record in await consumer.chunk()]
        assert sorted(values) == [n for n in range(30) if n % 3 != 1]
        assert list(consumer.errors) == [1]
        error = consumer.errors[1]
        if follow:
            assert "reading goes on without partition=orders/1: 127.0.0.1" in caplog.text
            assert "Read on from offset 8." in caplog.text
            await log.produce("orders", 30, partition=0)
            assert [record.json() for record in await consumer.chunk()] == [30]
        else:
            with pytest.raises(Corrupt, match=r"wal/7/3 is damaged \(orders/1\)"):
                await consumer.chunk()
        assert (error.details["partition"], error.details["next_offset"]) == (1, 8)
        await consumer.aclose()

    with_records(test)


def test_partitions_that_begin_outside_of_their_offsets_do_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        await log.produce("orders", 30, partition=2)
        values, error = await read_until_it_fails(log.consume("orders", from_=11, follow=False))
        assert (values, type(error)) == ([], OutOfRange)
        values, error = await read_until_it_fails(log.consume("orders", from_={0: 99, 1: 99, 2: 10}, follow=False))
        assert (values, type(error)) == ([30], OutOfRange)
        assert "offset 99 of orders/0 is outside of [0, 10]: its newest record has offset 9" in error.message
        assert error.__notes__ == ["2 partitions of orders were not read to their ends: 0, 1."]
        assert "reading goes on without partition=orders/1" in caplog.text

    with_records(test)


def test_when_every_partition_has_failed_the_error_is_raised() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.read_faults = {("orders", partition): Corrupt("damaged") for partition in range(3)}
        values, error = await read_until_it_fails(log.consume("orders", from_=0))
        assert (values, type(error)) == ([], Corrupt)

    with_records(test)


def test_a_partition_without_a_leader_is_waited_for_and_the_others_are_read(caplog: pytest.LogCaptureFixture) -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.read_faults["orders", 1] = NoLeader("orders/1 has no leader")
        consumer = log.consume("orders", from_=0)
        values = [record.json() for _ in range(2) for record in await consumer.chunk()]
        assert sorted(values) == [n for n in range(30) if n % 3 != 1]
        await log.produce("orders", 30, partition=0)
        assert [record.json() for record in await consumer.chunk()] == [30]
        broker.read_faults.clear()
        assert [record.json() for record in await consumer.chunk()] == list(range(1, 30, 3))
        assert caplog.text.count("orders/1 has no leader") == 1, "logged once, not at each attempt"
        await consumer.aclose()

    with_records(test)


def test_a_session_that_ends_at_the_broker_is_waited_for_from_the_first_question_on() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        broker.read_faults = PassingFaults({("orders", 1): SessionFenced("the session was sealed")})
        assert len(await read(log)) == 30

    with_records(test)


class PassingFaults(dict[tuple[str, int], TidelogError]):
    """Each is met twice."""

    def get(self, partition: tuple[str, int], default: object = None) -> Any:
        fault = super().get(partition)
        if fault is not None and "met" in fault.details:
            del self[partition]
        elif fault is not None:
            fault.details["met"] = True
        return fault


def test_a_partition_that_ends_before_its_end_is_not_waited_for_without_end() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        impatient(log, delivery_timeout_ms=1_000)
        consumer = log.consume("orders", follow=False, partitions=[0])
        values = [record.json() for record in await consumer.chunk()]
        held = broker.partitions["orders", 0]
        del held.batches[5:]
        held.end = 5
        more, error = await read_until_it_fails(consumer)
        assert len(values + more) < 10
        assert isinstance(error, Unavailable)
        assert "orders/0 ends at offset 5; when reading began, it ended at 10" in error.message

    with_records(test, fetch_wait_ms_max=10, read_ahead_bytes_max=1, batch_bytes_max=27)


# ── the reader ──


def test_no_partition_to_read_is_refused() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        with pytest.raises(InvalidArgument, match="no partition is to be read"):
            await read(log, partitions=[])
        with pytest.raises(InvalidArgument, match="'0' is no partition"):
            await read(log, partitions=["0"])

    with_records(test)


def test_leaders_share_the_room_and_no_one_keeps_another_from_reading() -> None:
    async def run() -> None:
        async with running(SmallBroker("a")) as a, running(SmallBroker("b")) as b, asyncio.timeout(60):
            a.create_topic("orders", 4)
            b.join(a)
            a.leaders |= {("orders", partition): "ab"[partition % 2] for partition in range(4)}
            settings: SettingChanges = {**QUICK, "read_ahead_bytes_max": 4_000, "batch_bytes_max": 500}
            async with tidelog.connect(a.address, **settings) as log:
                await log.produce_many("orders", [tidelog.Message(n, partition=1) for n in range(500)])
                consumer = log.consume("orders")  # the other leader has nothing, and is asked all the same
                values: list[int] = []
                while len(values) < 500:
                    values += [record.json() for record in await consumer.chunk()]
                await log.produce("orders", 500, partition=0)
                assert [record.json() for record in await consumer.chunk()] == [500]
                assert values == list(range(500))
                await consumer.aclose()

    asyncio.run(run())
