from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from gateway.grpc.server import SPARE_CALLS, WATCHES_MAX, _calls_max, _options
from gateway.proto import admin_pb2, log_pb2
from gateway.settings import GatewaySettings
from gateway.topics.names import partition_of
from tests.gateway.grpc.produce.test_service import ready, reasons, request
from tests.gateway.grpc.services.test_admin import refusal, serve
from tests.kit.gateway.small_broker import SmallBroker, until, with_broker
from tests.kit.gateway.stalled_readers import calls_without_window, streams_at_once
from tests.kit.gateway.stubs import health_stub, log_stub, reflection_stub, topics_stub
from tests.kit.segments.batches import batch_of

pytestmark = pytest.mark.slow


def test_the_health_check_returns_whether_requests_can_succeed(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        health = health_stub(channel)

        async def status(service: str) -> int:
            return int((await health.Check(health_pb2.HealthCheckRequest(service=service))).status)

        assert await status("") == health_pb2.HealthCheckResponse.SERVING
        assert await status("tidelog.v1.Log") == health_pb2.HealthCheckResponse.SERVING
        broker.serving = False
        assert await status("") == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await refusal(status("another")))[0] is grpc.StatusCode.NOT_FOUND

    serve(tmp_path, scenario)


def test_a_health_watch_reports_changes_and_ends_with_the_stop(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        health = health_stub(channel)
        watching = health.Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        broker.serving = False
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        unknown = health.Watch(health_pb2.HealthCheckRequest(service="another"))
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        await broker.grpc.stop(5)
        assert await watching.code() is grpc.StatusCode.UNAVAILABLE

    serve(tmp_path, scenario)


def test_a_health_watch_reports_not_serving_before_a_stop_ends_it(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        watching = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        reading = asyncio.ensure_future(watching.read())  # begun before: grpc.aio returns no message once it has the status
        await broker.grpc.stop(5)
        assert (await reading).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await watching.code() is grpc.StatusCode.UNAVAILABLE

    serve(tmp_path, scenario)


def test_a_stream_beyond_the_bound_ends_the_oldest_watch_of_the_address_with_the_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.grpc.server.WATCHES_MAX", 3)

    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        health = health_stub(channel)
        watching = []
        for _ in range(2):
            watching.append(health.Watch(health_pb2.HealthCheckRequest()))
            assert (await watching[-1].read()).status == health_pb2.HealthCheckResponse.SERVING
        silent: Any = channel.stream_stream("/grpc.health.v1.Health/Watch")()
        await silent.write(b"")
        assert health_pb2.HealthCheckResponse.FromString(await silent.read()).status == health_pb2.HealthCheckResponse.SERVING
        asking = reflection_stub(channel).ServerReflectionInfo()
        await asking.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert (await asking.read()).list_services_response.service
        assert await refusal(watching[0].read()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "THROTTLED")
        assert "the oldest of the address that has most" in await watching[0].details()
        assert not watching[1].done()
        assert not asking.done()

    serve(tmp_path, scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has more than one loopback address without configuration")
def test_a_client_that_reads_no_answers_does_not_block_calls_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are answered, or as many more as had a place at the same moment, and wait for a window that never opens; the others are
    refused, which needs none."""
    monkeypatch.setattr("gateway.grpc.server.WATCHES_MAX", 4)
    monkeypatch.setattr("gateway.grpc.server._calls_max", lambda settings: 40)

    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        outsider = await calls_without_window(
            broker.grpc_address, "/grpc.health.v1.Health/Check", b"", 60, source="127.0.0.2", ended=54
        )
        watching = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        for _ in range(10):
            await health_stub(channel).Check(health_pb2.HealthCheckRequest())
        await topics_stub(channel).ListTopics(admin_pb2.ListTopicsRequest())
        outsider.close()

    serve(tmp_path, scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has more than one loopback address without configuration")
@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("/grpc.health.v1.Health/Watch", b""),
        (
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString(),
        ),
    ],
)
@pytest.mark.parametrize("take_s", [1.0, 60.0])
def test_clients_that_read_nothing_of_their_streams_block_no_others_and_are_disconnected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    message: bytes,
    take_s: float,
) -> None:
    """A stream that is ended while it writes waits for a window that never opens, and is known to."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("gateway.grpc.server.WATCHES_MAX", 40)
    monkeypatch.setattr("gateway.grpc.server._calls_max", lambda settings: 150)
    monkeypatch.setattr("gateway.grpc.anonymous_streams.TAKE_S", take_s)
    monkeypatch.setattr("gateway.grpc.anonymous_streams.CUTS_PAUSE_S", 0.0)

    async def served(ask: Callable[[], Awaitable[Any]]) -> Any:
        """Asks until it is answered. On a busy machine a call of this client may take longer than `take_s` and be cut off."""
        while True:
            try:
                return await ask()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.CANCELLED or take_s >= 60:
                    raise

    async def watched(channel: grpc.aio.Channel) -> Any:
        watching = health_stub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        try:
            return await watching.read()
        finally:
            watching.cancel()

    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        outsiders = []
        for number in range(2, 8):
            source = f"127.0.0.{number}"
            outsiders.append(await calls_without_window(broker.grpc_address, method, message, 60, source=source, ended=0))
            await served(lambda: health_stub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60))
            assert (await served(lambda: watched(channel))).status == health_pb2.HealthCheckResponse.SERVING
        await topics_stub(channel).ListTopics(admin_pb2.ListTopicsRequest(), timeout=60)
        async with asyncio.timeout(60):
            while take_s < 60 and "cut off" not in caplog.text:
                await served(lambda: health_stub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60))
        for outsider in outsiders:
            outsider.close()

    serve(tmp_path, scenario)
    assert ("cut off" in caplog.text) is (take_s < 60)
    # gRPC's poller may deliver here what is left of a former test, whose event loop is closed.
    failed = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [error for error in failed if str(error) != "Event loop is closed"] == []


def test_one_connection_may_carry_all_that_is_counted_and_no_more(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        assert await streams_at_once(broker.grpc_address) == 2 * 1_000 + 10_000 + WATCHES_MAX
        assert _calls_max(broker.settings) - await streams_at_once(broker.grpc_address) == SPARE_CALLS - WATCHES_MAX

    serve(tmp_path, scenario)


def test_a_health_watch_without_a_request_is_refused_as_an_invalid_argument(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        watch: Any = channel.stream_stream("/grpc.health.v1.Health/Watch")()
        await watch.done_writing()
        assert await watch.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "a call failed" not in caplog.text

    serve(tmp_path, scenario)


def test_reflection_lists_every_service_with_its_descriptor(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        call = reflection_stub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        services = {service.name for service in (await call.read()).list_services_response.service}
        assert services >= {"tidelog.v1.Log", "tidelog.v1.Topics", "tidelog.v1.Cluster", "grpc.health.v1.Health"}
        for service in services:
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=service))
            assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()

    serve(tmp_path, scenario)


def test_every_method_of_the_protos_is_served(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        methods = [
            f"/{service.full_name}/{method.name}"
            for file in (log_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR)
            for service in file.services_by_name.values()
            for method in service.methods
        ]
        assert len(methods) > 12
        for method in methods:
            call: Any = channel.stream_stream(method)()
            await call.write(b"\xff\xff\xff")
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT, method

    serve(tmp_path, scenario)


def test_a_stop_answers_accepted_appends_and_ends_streams_as_unavailable(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stub = log_stub(channel)
        broker.store.hold()
        call = stub.ProduceStream()
        await call.write(request(ready(batch_of(b"a")), correlation_id=5))
        await until(lambda: broker.log.partitions.bounds(partition_of(broker.topic_cache.get("orders"), 0)).end_offset == 1)
        stopping = asyncio.ensure_future(broker.grpc.stop(60))
        assert not (await asyncio.wait((stopping,), timeout=0.05))[0]
        broker.store.let_go()
        answer = await call.read()
        assert (answer.correlation_id, reasons(answer)) == (5, [""])
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await stopping
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Produce(request(ready(batch_of(b"b"))))

    serve(tmp_path, scenario)


def test_one_call_more_than_is_allowed_is_throttled_with_its_details_whatever_it_asks_for(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        stub = log_stub(channel)
        open_calls = [stub.ProduceStream() for _ in range(3)]
        for call in open_calls:
            await call.write(request(ready(batch_of(b"a"))))
            await call.read()
        throttled = (grpc.StatusCode.RESOURCE_EXHAUSTED, "THROTTLED")
        assert await refusal(stub.Produce(request(ready(batch_of(b"b"))))) == throttled
        assert await refusal(stub.Fetch(log_pb2.FetchRequest())) == throttled
        assert await refusal(topics_stub(channel).ListTopics(admin_pb2.ListTopicsRequest())) == throttled
        assert await stub.ProduceStream().code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        health = await health_stub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        await open_calls[0].done_writing()
        assert await open_calls[0].code() is grpc.StatusCode.OK
        open_calls[1].cancel()
        while True:  # until the broker has noticed, too
            try:
                assert reasons(await stub.Produce(request(ready(batch_of(b"b"))))) == [""]
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.001)

    serve(tmp_path, scenario, settings=GatewaySettings(grpc_streams_max=3))


def test_calls_that_fail_do_not_count_any_more(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, channel: grpc.aio.Channel) -> None:
        topics = topics_stub(channel)
        for _ in range(10):
            assert (await refusal(topics.GetTopic(admin_pb2.GetTopicRequest(name="nothing"))))[1] == "UNKNOWN_TOPIC"
        broker.topic_cache = None  # type: ignore[assignment]  # an error of the broker's own
        for _ in range(10):
            assert (await refusal(topics.ListTopics(admin_pb2.ListTopicsRequest())))[1] == "INTERNAL"

    serve(tmp_path, scenario, settings=GatewaySettings(grpc_streams_max=5))


def test_an_old_connection_is_ended_and_its_client_reconnects(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with grpc.aio.insecure_channel(broker.grpc_address) as channel:
            stub = log_stub(channel)
            call = stub.ProduceStream()
            await call.write(request(ready(batch_of(b"a"))))
            await call.read()
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            answer = None
            while answer is None:  # on a busy machine the next connection may be old as well before it is answered
                with suppress(grpc.aio.AioRpcError):
                    answer = await stub.Produce(request(ready(batch_of(b"b"))))
            assert reasons(answer) == [""]

    settings = GatewaySettings(grpc_connection_age_ms=200, grpc_connection_age_grace_ms=100)
    with_broker(tmp_path, scenario, settings=settings)


def test_calls_that_are_not_taken_up_in_time_are_refused_unread_and_those_that_came_later_are_answered() -> None:
    """Else a broker that gets more calls than it answers would go on answering calls whose clients no longer wait."""
    taken, released = threading.Event(), threading.Event()
    listening: Future[tuple[int, Callable[[], object]]] = Future()
    read: list[bytes] = []

    async def answer(message: bytes, _: object) -> bytes:
        read.append(message)
        if message == b"holds the loop":
            taken.set()
            assert released.wait(60)
        return message

    async def serve_until_stopped() -> None:
        server, over, loop = grpc.aio.server(options=_options(GatewaySettings())), asyncio.Event(), asyncio.get_running_loop()
        handlers: Any = {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        listening.set_result((port, lambda: loop.call_soon_threadsafe(over.set)))
        await over.wait()
        await server.stop(None)

    thread = threading.Thread(target=lambda: asyncio.run(serve_until_stopped()), daemon=True)
    thread.start()
    port, stop = listening.result(60)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        echo: Any = channel.unary_unary("/Test/Echo")
        holding = echo.future(b"holds the loop", timeout=60)
        assert taken.wait(60)
        early = [echo.future(b"early", timeout=60) for _ in range(10)]
        time.sleep(GatewaySettings().grpc_queue_timeout_ms / 1000 + 0.5)  # by gRPC's own clock
        later = echo.future(b"later", timeout=60)
        released.set()
        assert holding.result(60) == b"holds the loop"
        while later.code() is grpc.StatusCode.CANCELLED:  # on a busy machine it may not have been taken up in time, either
            later = echo.future(b"later", timeout=60)
        assert later.result(60) == b"later"
        assert sorted(call.code().name for call in early) == ["CANCELLED"] * 9 + ["OK"], "gRPC has handed one to the loop at once"
    stop()
    thread.join(60)
    assert read.count(b"early") == 1
