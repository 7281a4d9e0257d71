"""Calls that are tried again, brokers that come back elsewhere, and what is remembered of them."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy

import grpc
import grpc.aio
import pytest

import tidelog
from gateway.proto import admin_pb2
from metadata.errors import OutcomeUnknown, Stopping, Throttled, Unavailable, UnknownTopic
from tests.kit.gateway.small_broker import until
from tests.kit.tidelog.producing import quick, with_broker
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.settings import ClientSettings, settings_from
from tidelog.transport.addresses import parse_address
from tidelog.transport.connection import Connection, Stubs
from tidelog.transport.routes import DEFAULT_LIMITS

pytestmark = pytest.mark.slow

SILENCE = grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata(), "silence")


def with_connection(test: Callable[[SmallBroker, Connection], Awaitable[None]], settings: ClientSettings) -> None:
    async def connected(broker: SmallBroker) -> None:
        connection = Connection([broker.address], settings)
        await connection.open()
        try:
            await test(broker, connection)
        finally:
            await connection.close()

    with_broker(connected)


def test_a_read_has_time_for_another_attempt_when_a_broker_keeps_silent_and_a_write_has_all_the_time() -> None:
    async def test(broker: SmallBroker, connection: Connection) -> None:
        timeouts_s: list[float] = []

        async def attempt(to: Stubs, timeout_s: float) -> str:
            timeouts_s.append(timeout_s)
            if len(timeouts_s) == 1:
                raise SILENCE
            return "an answer"

        assert await connection.call(attempt, writes=False) == "an answer"
        assert timeouts_s[0] == pytest.approx(100.0, abs=60.0)
        timeouts_s.clear()
        with pytest.raises(OutcomeUnknown):
            await connection.call(attempt, writes=True)
        assert timeouts_s == [pytest.approx(300.0, abs=60.0)]

    with_connection(test, settings_from(quick(request_timeout_ms=300_000)))


def test_a_broker_that_asks_for_time_gets_it_and_no_longer_than_there_is() -> None:
    async def test(broker: SmallBroker, connection: Connection) -> None:
        begun_s = asyncio.get_running_loop().time()
        waits_s = [0.05, 60.0]

        async def attempt(to: Stubs, timeout_s: float) -> str:
            raise Throttled("full", retry_after_s=waits_s.pop(0))

        with pytest.raises(Throttled):
            await connection.call(attempt, writes=True)
        assert 0.05 <= asyncio.get_running_loop().time() - begun_s < 50
        assert waits_s == []

    with_connection(test, settings_from(quick(request_timeout_ms=20_000)))


def test_an_attempt_that_the_deadline_cut_short_does_not_hide_what_a_broker_has_said() -> None:
    async def test(broker: SmallBroker, connection: Connection) -> None:
        async def attempt(to: Stubs, timeout_s: float) -> str:
            if timeout_s == pytest.approx(0.2, abs=1e-6):  # all that an attempt ever has
                raise Stopping("the broker is shutting down")
            await asyncio.sleep(timeout_s)
            raise SILENCE

        with pytest.raises(Stopping):
            await connection.call(attempt, writes=False)

    with_connection(test, settings_from(quick(request_timeout_ms=600)))


def test_a_change_is_not_tried_in_less_time_than_brokers_take_to_say_that_they_can_not() -> None:
    """Cut short, its outcome would be unknown, though all brokers had said that they wrote nothing."""

    async def test(broker: SmallBroker, connection: Connection) -> None:
        given_s: list[float] = []

        async def attempt(to: Stubs, timeout_s: float) -> str:
            given_s.append(timeout_s)
            await asyncio.sleep(0.4)
            raise Unavailable("etcd is away")

        with pytest.raises(Unavailable, match="etcd is away"):
            await connection.call(attempt, writes=True)
        assert given_s[-1] >= 0.4

        given_s.clear()
        with pytest.raises(Unavailable, match="etcd is away"):
            await connection.call(attempt, writes=False)  # what reads loses nothing by it
        assert len(given_s) > 1

    with_connection(test, settings_from(quick(request_timeout_ms=2_000)))


def test_a_change_goes_to_a_broker_that_has_not_said_yet_that_it_can_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: SmallBroker, connection: Connection) -> None:
        seeds = iter(["127.0.0.1:1", "127.0.0.1:2"])
        monkeypatch.setattr(Connection, "_seed", property(lambda _: next(seeds)))
        tried = 0

        async def attempt(to: Stubs, timeout_s: float) -> str:
            nonlocal tried
            tried += 1
            if tried == 1:
                await asyncio.sleep(2.2)
                raise Unavailable("etcd is away")
            return "done"

        assert await connection.call(attempt, writes=True) == "done"
        assert tried == 2

    with_connection(test, settings_from(quick(request_timeout_ms=4_000)))


def test_a_change_does_not_go_to_a_third_broker_in_less_time_than_two_have_taken_to_say_that_they_can_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(broker: SmallBroker, connection: Connection) -> None:
        seeds = iter([f"127.0.0.1:{port}" for port in (1, 2, 3)])
        monkeypatch.setattr(Connection, "_seed", property(lambda _: next(seeds)))
        tried: list[str] = []

        async def attempt(to: Stubs, timeout_s: float) -> str:
            tried.append(to.address)
            await asyncio.sleep(0.45)
            raise Unavailable("etcd is away")

        with pytest.raises(Unavailable, match="etcd is away"):
            await connection.call(attempt, writes=True)
        assert "127.0.0.1:3" not in tried

    with_connection(test, settings_from(quick(request_timeout_ms=1_000)))


def test_a_timeout_is_reported_as_silence_whatever_the_broker_answered_before() -> None:
    async def test(broker: SmallBroker, connection: Connection) -> None:
        said = [Throttled("full", retry_after_s=0.001), SILENCE]

        async def attempt(to: Stubs, timeout_s: float) -> str:
            raise said.pop(0)

        with pytest.raises(Unavailable, match="no answer: silence"):
            await connection.call(attempt, writes=False)

    with_connection(test, settings_from(quick(retry_pause_ms=120_000, retry_pause_ms_max=120_000)))


def test_an_error_that_a_call_has_met_is_gone_with_it() -> None:
    """And with it all that its frame holds: nothing waits for the garbage collector."""

    async def test(broker: SmallBroker, connection: Connection) -> None:
        met: list[weakref.ref[Unavailable]] = []

        async def fails(to: Stubs, timeout_s: float) -> str:
            error = Unavailable("not now")
            met.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error

        async def fails_once(to: Stubs, timeout_s: float) -> str:
            return "an answer" if met else await fails(to, timeout_s)

        gc.disable()
        try:
            await connection.call(fails_once, writes=False)
            with suppress(Unavailable):
                await connection.call(fails, writes=False)
            assert len(met) > 1
            assert [error() for error in met] == [None] * len(met)
        finally:
            gc.enable()

    with_connection(test, settings_from(quick(request_timeout_ms=300)))


def test_throttled_clients_do_not_all_retry_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)  # the latest: half as long again as the broker has said

    async def test(broker: SmallBroker, connection: Connection) -> None:
        loop, called_s = asyncio.get_running_loop(), list[float]()

        async def attempt(to: Stubs, timeout_s: float) -> str:
            called_s.append(loop.time())
            if len(called_s) == 1:
                raise Throttled("full", retry_after_s=0.2)
            return "an answer"

        assert await connection.call(attempt, writes=True) == "an answer"
        assert called_s[1] - called_s[0] >= 0.299

    with_connection(test, settings_from(quick(request_timeout_ms=20_000)))


@pytest.mark.parametrize("is_away", [False, True], ids=["there", "away"])
def test_many_who_look_for_the_cluster_at_the_same_time_ask_for_it_once(is_away: bool) -> None:
    async def test(broker: SmallBroker, connection: Connection) -> None:
        asked: list[str] = []

        def asks(method: str) -> None:
            asked.append(method)
            if is_away:
                raise Unavailable("no broker works")

        broker.before_call = asks
        found = await asyncio.gather(*(connection.open() for _ in range(20)), return_exceptions=True)
        assert [isinstance(outcome, Unavailable) for outcome in found] == [is_away] * 20
        assert asked == ["GetCluster"]
        with suppress(Unavailable):
            await connection.open()
        assert asked == ["GetCluster"] * 2, "a later caller asks again"

    with_connection(test, settings_from(quick()))


def test_a_route_that_one_broker_is_asked_for_is_asked_for_once() -> None:
    async def test(broker: SmallBroker, connection: Connection) -> None:
        await broker.stop()
        begun_s = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable):
            await connection.route("orders", fresh=True, at=broker.address.removeprefix("grpc://"))
        assert asyncio.get_running_loop().time() - begun_s < 50
        await broker.start()

    with_connection(test, settings_from(quick(request_timeout_ms=60_000)))


def test_limits_are_remembered_by_address_and_forgotten_with_the_broker() -> None:
    async def test(broker: SmallBroker, connection: Connection) -> None:
        address = broker.address.removeprefix("grpc://")
        assert connection.limits(address) == DEFAULT_LIMITS
        broker.limits = admin_pb2.BrokerLimits(request_bytes_max=5_000)
        await connection.route("orders", fresh=True)
        assert connection.limits(address).request_bytes_max == 5_000
        assert connection.limits("another:9090") == DEFAULT_LIMITS
        broker.reports_limits = False
        await connection.cluster()
        assert connection.limits(address).request_bytes_max == 5_000, "known limits stay where nothing newer is"

    with_connection(test, settings_from(quick()))


def test_only_routes_that_are_not_too_old_are_kept() -> None:
    async def test(broker: SmallBroker, connection: Connection) -> None:
        for n in range(50):
            broker.create_topic(f"topic-{n}", 1)
            await connection.route(f"topic-{n}")
            with pytest.raises(UnknownTopic):
                await connection.route(f"nothing-{n}")
        assert len(connection._routes) < 50
        assert len(connection._questions) == 0

    with_connection(test, settings_from(quick(topic_age_ms_max=10)))


def test_a_broker_that_has_not_heard_of_added_partitions_does_not_replace_a_better_route() -> None:
    async def run() -> None:
        leads, lags = SmallBroker("leads"), SmallBroker("lags")
        lags.join(leads)
        leads.create_topic("orders", 3)
        async with running(leads), running(lags), asyncio.timeout(60), tidelog.connect(leads.address) as log:
            connection = log._connection
            assert (await connection.route("orders")).partition_count == 3
            former = copy(leads.topics["orders"])
            former.partition_count = 2
            lags.topics = {"orders": former}
            with pytest.raises(Unavailable, match="has not heard yet of all partitions of topic orders"):
                await connection.route("orders", fresh=True, at=lags.address.removeprefix("grpc://"))
            assert (await connection.route("orders")).partition_count == 3

    asyncio.run(run())


def test_a_question_that_takes_no_outdated_answer_goes_on_to_a_broker_that_has_caught_up() -> None:
    async def run() -> None:
        leads, lags = SmallBroker("leads"), SmallBroker("lags")
        lags.join(leads)
        leads.create_topic("orders", 3)

        def refuse(method: str) -> None:
            if method == "GetTopic" and lags.asked_for_topics[-1].refuse_outdated:
                assert lags.asked_for_topics[-1].fresh, "for brokers that do not know the other flag"
                raise Unavailable("this broker has not heard yet of the present state of topic orders", is_outdated=True)

        lags.before_call = refuse
        async with running(leads), running(lags), asyncio.timeout(60), tidelog.connect(lags.address) as log:
            connection = log._connection
            assert (await connection.route("orders", from_store=True)).partition_count == 3
            assert not leads.asked_for_topics
            assert (await connection.route("orders", from_store=True, refuses_outdated=True)).partition_count == 3
            assert leads.asked_for_topics[-1].refuse_outdated
            assert not connection._reachability.none_answers([lags.host_port]), "it works, and is behind"
            assert connection._seed == leads.host_port

    asyncio.run(run())


def test_a_question_that_waits_for_the_metadata_store_holds_up_no_other_about_the_topic() -> None:
    async def test(broker: SmallBroker, connection: Connection) -> None:
        def refuse(method: str) -> None:
            if method == "GetTopic" and broker.asked_for_topics[-1].refuse_outdated:
                raise Unavailable("this broker has not heard yet of the present state of topic orders", is_outdated=True)

        broker.before_call = refuse
        waits = asyncio.create_task(connection.route("orders", from_store=True, refuses_outdated=True))
        await until(lambda: bool(broker.asked_for_topics))
        assert (await connection.route("orders", fresh=True)).partition_count == 3
        assert not waits.done()
        broker.before_call = lambda method: None
        assert (await waits).partition_count == 3

    with_connection(test, settings_from(quick()))


def test_the_route_of_a_topic_that_this_client_changes_is_looked_up_again() -> None:
    async def run() -> None:
        broker = SmallBroker()
        async with running(broker), asyncio.timeout(60), tidelog.connect(broker.address) as log:
            broker.create_topic("orders", 2)
            await log._connection.route("orders")
            log._connection.forget_route("orders")
            broker.topics["orders"].partition_count = 3
            assert (await log._connection.route("orders")).partition_count == 3

    asyncio.run(run())


def test_a_broker_that_knows_of_none_while_all_are_restarted_does_not_make_us_forget_them() -> None:
    """Their leases have ended. A client with an HTTP address only would have no broker left to ask."""
    connection = Connection(["http://127.0.0.1:8080"], ClientSettings())
    b1 = admin_pb2.Broker(broker_id="b1", http_address="127.0.0.1:8080", grpc_address="127.0.0.1:9090")
    connection._learn_cluster(admin_pb2.ClusterDescription(brokers=[b1]), parse_address("http://127.0.0.1:8080"))
    assert connection._seed == "127.0.0.1:9090"
    with pytest.raises(Unavailable, match="the cluster has no broker yet"):
        connection._learn_cluster(admin_pb2.ClusterDescription(), parse_address("grpc://127.0.0.1:9090"))
    assert connection._seed == "127.0.0.1:9090"
