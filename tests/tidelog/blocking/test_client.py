"""The blocking twin against a broker in another thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import tidelog
from metadata.errors import OutcomeUnknown, Rejected, TooLarge, Unavailable, UnknownTopic
from segments.records.header import BatchHeader
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.admin.groups import Groups
from tidelog.admin.topics import Topics
from tidelog.client import Client

pytestmark = pytest.mark.slow


@contextmanager
def broker_in_thread() -> Iterator[SmallBroker]:
    broker, ready = SmallBroker(), threading.Event()
    broker.create_topic("orders", 3)
    stops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        stops.append((asyncio.get_running_loop(), stop))
        async with running(broker):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield broker
    finally:
        loop, stop = stops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def test_the_blocking_client_has_every_public_method_of_the_client() -> None:
    log = tidelog.connect_sync()
    for twin, original in ((tidelog.BlockingClient, Client), (type(log.topics), Topics), (type(log.groups), Groups)):
        for name, method in inspect.getmembers(original, inspect.isfunction):
            if not name.startswith("_"):
                assert list(inspect.signature(getattr(twin, name)).parameters) == list(inspect.signature(method).parameters)
                assert getattr(twin, name).__doc__ == method.__doc__


def test_the_blocking_client_produces_and_consumes() -> None:
    with broker_in_thread() as broker, tidelog.connect_sync(broker.address) as log:
        assert log.produce("orders", {"id": 7}, partition=0).offset == 0
        delivery = log.send("orders", 8, partition=0)
        assert delivery.result().offset == 1
        assert delivery.done
        assert len(log.produce_many("orders", range(100))) == 100
        log.flush()
        consumer = log.consume("orders", follow=False)
        assert sum(1 for _ in consumer) == 102
        assert sum(consumer.positions.values()) == 102
        for _ in log.consume("orders"):
            break
        assert log.offsets("orders")[0].high_watermark >= 2
        assert log.topics.describe("orders").partition_count == 3
        assert log.cluster().cluster_id == "c"


def test_the_blocking_client_serves_several_threads() -> None:
    with broker_in_thread() as broker, tidelog.connect_sync(broker.address) as log:

        def work(number: int) -> None:
            log.produce_many("orders", [tidelog.Message(n, key=str(number)) for n in range(50)])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(broker.values("orders")) == 200


def test_errors_come_out_where_they_belong() -> None:
    with broker_in_thread() as broker:
        with tidelog.connect_sync(broker.address) as log, pytest.raises(UnknownTopic):
            log.produce("nothing", 1)

        def too_large(topic: str, partition: int, header: BatchHeader) -> None:
            raise TooLarge("too large for us")

        broker.before_append = too_large
        with pytest.raises(TooLarge), tidelog.connect_sync(broker.address) as log:
            log.send("orders", 1)
        with pytest.raises(KeyError), tidelog.connect_sync(broker.address) as log:
            raise KeyError("of the program")
        with pytest.raises(Rejected, match="closed"):
            log.produce("orders", 1)
        with pytest.raises(Rejected, match="not connected"):
            tidelog.connect_sync(broker.address).produce("orders", 1)
    with pytest.raises(Unavailable), tidelog.connect_sync("grpc://127.0.0.1:1"):
        pass


def test_a_client_is_entered_once() -> None:
    with broker_in_thread() as broker:
        log = tidelog.connect_sync(broker.address)
        with log:
            log.produce("orders", 1)
            assert log.outcomes.acknowledged == 1
        with pytest.raises(Rejected, match="entered once"), log:
            pass


def test_a_client_that_could_not_connect_is_not_connected() -> None:
    log = tidelog.connect_sync("grpc://127.0.0.1:1", connect_timeout_ms=200)
    with pytest.raises(Unavailable), log:
        pass
    with pytest.raises(Rejected, match="not connected"):
        log.produce("orders", 1)


def test_a_call_of_another_thread_gets_an_error_when_the_client_is_closed() -> None:
    """It neither hangs nor looks like a cancelled program."""
    with broker_in_thread() as broker:
        for _ in range(20):  # where in its call the other thread is, is a matter of luck
            ended: list[BaseException] = []
            with tidelog.connect_sync(broker.address) as log:
                log.produce("orders", 1)
                under_way = threading.Event()

                def work(log: tidelog.BlockingClient, ended: list[BaseException], under_way: threading.Event) -> None:
                    try:
                        while True:
                            log.produce("orders", 2)
                            under_way.set()
                    except BaseException as error:  # noqa: BLE001  # whatever it is, it is what the test looks at
                        ended.append(error)

                thread = threading.Thread(target=work, args=(log, ended, under_way))
                thread.start()
                under_way.wait()
            thread.join(10)
            assert not thread.is_alive()
            assert isinstance(ended[0], Rejected | Unavailable | OutcomeUnknown)


def test_a_blocking_call_in_the_clients_own_thread_is_refused() -> None:
    with broker_in_thread() as broker, tidelog.connect_sync(broker.address) as log:

        def call_back() -> None:
            with pytest.raises(Rejected, match="own thread can't wait for itself"):
                log.produce("orders", 2)

        log._thread.wait_for(lambda: _in_the_loop(call_back))
        assert log.produce("orders", 1, partition=0).offset == 0


async def _in_the_loop(call: Callable[[], None]) -> None:
    call()


def test_a_reader_that_is_forgotten_in_the_clients_own_thread_does_not_hang_it() -> None:
    with broker_in_thread() as broker, tidelog.connect_sync(broker.address) as log:
        log.produce_many("orders", range(100))
        loops = [iter(log.consume("orders"))]
        next(loops[0])
        log._thread.wait_for(lambda: _in_the_loop(loops.clear))
        assert log.produce("orders", 1, partition=0).partition == 0


def test_a_reader_ends_with_its_block() -> None:
    with broker_in_thread() as broker, tidelog.connect_sync(broker.address) as log:
        log.produce_many("orders", range(100))
        with log.consume("orders") as consumer:
            assert len(consumer.chunk()) > 0
            assert consumer.errors == {}
        with pytest.raises(Rejected, match="closed before its end"):
            consumer.chunk()


def test_an_interrupt_ends_the_wait_of_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    with broker_in_thread() as broker:
        log = tidelog.connect_sync(broker.address, delivery_timeout_ms=60_000)
        log.__enter__()
        log.produce("orders", 1, partition=0)
        broker.answering.clear()
        delivery = log.send("orders", 2, partition=0)
        join, interrupts = threading.Thread.join, [KeyboardInterrupt()]

        def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
            if thread.name == "tidelog client" and interrupts:
                raise interrupts.pop()
            join(thread, timeout)

        monkeypatch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.__exit__(None, None, None)
        monkeypatch.undo()
        assert delivery.done
        assert log.outcomes.unknown == 1
        assert not [thread for thread in threading.enumerate() if thread.name == "tidelog client"]


def test_the_thread_of_the_blocking_client_ends_with_it() -> None:
    with broker_in_thread() as broker:
        with tidelog.connect_sync(broker.address) as log:
            log.produce("orders", 1)
        assert not [thread for thread in threading.enumerate() if thread.name == "tidelog client"]
