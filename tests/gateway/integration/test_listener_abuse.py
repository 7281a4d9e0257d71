"""Unauthenticated clients at the listeners: whatever they send, other clients are served, and what they hold is bounded."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc.aio
import psutil
import pytest

from gateway.grpc import server as grpc_server
from gateway.grpc.server import HEAD_BYTES_MAX
from gateway.http import server as http_server
from gateway.net.connection_limiter import REFUSALS_OPEN_MAX
from gateway.net.tls import listener
from gateway.proto import admin_pb2, admin_pb2_grpc
from gateway.settings import GatewaySettings
from segments.settings import KIB, MIB
from tests.kit.gateway.http_client import client_of
from tests.kit.gateway.small_broker import SmallBroker, until, with_broker
from tests.kit.gateway.tls_brokers import TlsCluster, with_tls_cluster

pytestmark = pytest.mark.slow

IDLE_MAX = 10_000
SPARE_FILES = 1_000
# Of the whole process, for one idle connection with both its ends.
IDLE_BYTES_MAX = 40 * KIB
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
POST = b"\x83\x86"  # :method POST, :scheme http


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name: bytes, value: bytes, *, kept: bool = False) -> bytes:
    """A literal of HPACK (RFC 7541 §6.2); `kept`: with incremental indexing."""
    return (b"\x40" if kept else b"\x00") + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, coded = len(text) - 127, b"\x7f"
    while rest >= 128:
        coded, rest = coded + bytes([rest % 128 + 128]), rest // 128
    return coded + bytes([rest]) + text


CALL = POST + header(b":path", b"/tidelog.v1.Cluster/GetCluster") + header(b":authority", b"x") + header(b"te", b"trailers")
CALL += header(b"content-type", b"application/grpc")


class Bystander:
    """A client that goes on at both listeners, one call after the other; its first failure fails the test."""

    def __init__(self) -> None:
        self.served = 0

    async def goes_on(self) -> None:
        """Returns when some more calls at both listeners were answered, all of them begun from now on."""
        goal = self.served + 3
        await until(lambda: self.served >= goal)


@asynccontextmanager
async def bystander(broker: SmallBroker) -> AsyncIterator[Bystander]:
    who = Bystander()

    async def run() -> None:
        async with client_of(broker) as http, grpc.aio.insecure_channel(broker.grpc_address) as channel:
            stub: admin_pb2_grpc.ClusterStub = admin_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
            while True:
                assert (await http.produce("/v1/topics/single/records", [{"value": 1}])).status == 200
                await stub.GetCluster(admin_pb2.GetClusterRequest(), timeout=60)
                who.served += 1

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run())
        await who.goes_on()
        yield who
        await who.goes_on()
        running.cancel()


async def connected(address: str) -> socket.socket:
    host, port = address.split(":")
    made = socket.socket()
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, (host, int(port)))
    return made


async def end_of(made: socket.socket) -> bytes:
    """What comes until the other end hangs up."""
    loop, got = asyncio.get_running_loop(), b""
    try:
        while data := await loop.sock_recv(made, 1 << 16):
            got += data
    except ConnectionError:
        pass
    made.close()
    return got


def file_limit() -> int:
    """Raised as far as it may be."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


@pytest.mark.parametrize("endpoint", ["http", "grpc"])
def test_thousands_of_idle_connections_use_little_memory_and_do_not_block_other_clients(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", 300.0)
    count = min(IDLE_MAX - 100, (file_limit() - SPARE_FILES) // 2)

    async def scenario(broker: SmallBroker) -> None:
        async with bystander(broker) as other:
            memory = psutil.Process().memory_info()
            idle: list[socket.socket] = []
            try:
                for number in range(count):
                    idle.append(await connected(broker.http_address if endpoint == "http" else broker.grpc_address))
                    idle[-1].send(b"GET /livez HT" if endpoint == "http" else PREFACE + SETTINGS)
                    if number % 1_000 == 0:
                        await other.goes_on()
                if endpoint == "http":
                    await until(lambda: broker.http.connections.count >= count)
                else:
                    for one in idle:
                        assert await asyncio.get_running_loop().sock_recv(one, 1 << 16), "the settings of the other end"
                await other.goes_on()
                grown = psutil.Process().memory_info().rss - memory.rss
                assert grown < 32 * MIB + count * IDLE_BYTES_MAX, f"{grown / count / KIB:.0f} KiB for each"
            finally:
                for one in idle:
                    one.close()

    with_broker(tmp_path, scenario)


def test_an_http_connection_beyond_the_bound_gets_429_until_others_close(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with bystander(broker) as other:
            idle = [await connected(broker.http_address) for _ in range(9)]
            await until(lambda: broker.http.connections.count == 10)
            refused = await connected(broker.http_address)
            refused.send(b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answer = await end_of(refused)
            assert answer.startswith(b"HTTP/1.1 429 ")
            assert b"http_connections_max" in answer
            assert b"retry-after: " in answer
            probe = await connected(broker.http_address)
            probe.send(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            alive = await end_of(probe)
            assert alive.startswith(b"HTTP/1.1 200 "), "else a kubelet ends a broker that is well"
            assert alive.endswith(b"\r\n\r\n")
            surplus = [await connected(broker.http_address) for _ in range(REFUSALS_OPEN_MAX + 5)]
            await other.goes_on()
            for one in [*surplus, *idle]:
                one.close()
            await until(lambda: broker.http.connections.count == 1 and broker.http.connections.refusals_open == 0)
            async with client_of(broker) as client:
                assert (await client.get("/livez")).status == 200

    with_broker(tmp_path, scenario, settings=GatewaySettings(http_connections_max=10))


def test_one_grpc_connection_too_many_is_closed_and_room_comes_back(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with bystander(broker) as other:
            idle = [await connected(broker.grpc_address) for _ in range(4)]
            for one in idle:
                one.send(PREFACE + SETTINGS)
                assert await asyncio.get_running_loop().sock_recv(one, 1 << 16), "its settings"
            refused = await connected(broker.grpc_address)
            refused.send(PREFACE + SETTINGS)
            assert await end_of(refused) == b""
            await other.goes_on()
            for one in idle:
                one.close()
            again = b""
            while not again:  # room comes back when grpc has seen the ends
                one = await connected(broker.grpc_address)
                one.send(PREFACE + SETTINGS)
                with suppress(ConnectionError):
                    again = await asyncio.get_running_loop().sock_recv(one, 1 << 16)
                one.close()

    with_broker(tmp_path, scenario, settings=GatewaySettings(grpc_connections_max=5))


HARM = {
    "no preface": b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "half a preface": PREFACE[:10] + b"\x00" * 100,
    "tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    "frame above the limit": PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + b"x" * 1000,
    "settings of a wrong length": PREFACE + frame(4, 0, 0, b"12345"),
    "settings on a stream": PREFACE + frame(4, 0, 7),
    "data on stream 0": PREFACE + SETTINGS + frame(0, 0, 0, b"x"),
    "data on an idle stream": PREFACE + SETTINGS + frame(0, 1, 99, b"x"),
    "headers on an even stream": PREFACE + SETTINGS + frame(1, 5, 2, CALL),
    "hpack that is none": PREFACE + SETTINGS + frame(1, 5, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
    "hpack of an index that is not there": PREFACE + SETTINGS + frame(1, 5, 1, b"\xfe"),
    "padding longer than its frame": PREFACE + SETTINGS + frame(1, 0xD, 1, b"\xff" + CALL),
    "window of 0": PREFACE + SETTINGS + frame(8, 0, 0, b"\x00" * 4),
    "window that overflows": PREFACE + SETTINGS + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 3,
    "a continuation of nothing": PREFACE + SETTINGS + frame(9, 4, 1, CALL),
    "headers that never end": PREFACE + SETTINGS + frame(1, 0, 1, CALL) + frame(9, 0, 1, header(b"a", b"x" * 1000)) * 2000,
    "a flood of settings": PREFACE + SETTINGS * 20_000,
    "a flood of pings": PREFACE + SETTINGS + frame(6, 0, 0, b"12345678") * 20_000,
    "a flood of resets": PREFACE
    + SETTINGS
    + b"".join(frame(1, 4, stream, CALL) + frame(3, 0, stream, b"\x00\x00\x00\x08") for stream in range(1, 10_001, 2)),
    "empty frames": PREFACE + SETTINGS + frame(1, 4, 1, CALL) + frame(0, 0, 1) * 50_000,
    "an unknown kind of frame": PREFACE + SETTINGS + frame(200, 0, 0, b"x" * 1000) * 1000,
    "a bomb of one header, named again and again": PREFACE
    + SETTINGS
    + frame(1, 0, 1, CALL + header(b"bomb", b"x" * 3000, kept=True))
    + frame(9, 4, 1, b"\xbe" * 16_000),
}


def test_malformed_http2_ends_its_own_connection_and_no_other(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with bystander(broker) as other:
            process = psutil.Process()
            before = process.memory_info().rss
            for harm, sent in HARM.items():
                for _ in range(3):
                    abused = await connected(broker.grpc_address)
                    try:
                        async with asyncio.timeout(5):
                            await asyncio.get_running_loop().sock_sendall(abused, sent)
                    except (ConnectionError, TimeoutError):
                        pass
                    abused.close()
                await other.goes_on()
                assert process.memory_info().rss - before < 200 * MIB, harm

    with_broker(tmp_path, scenario)


def test_a_head_that_is_a_bomb_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with (
            bystander(broker),
            grpc.aio.insecure_channel(broker.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel,
        ):
            stub: admin_pb2_grpc.ClusterStub = admin_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
            for size in (2 * HEAD_BYTES_MAX, 1 * MIB):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.GetCluster(admin_pb2.GetClusterRequest(), metadata=(("bomb", "x" * size),), timeout=60)
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            many = tuple((f"h{number}", "x" * 100) for number in range(1000))
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.GetCluster(admin_pb2.GetClusterRequest(), metadata=many, timeout=60)
            await stub.GetCluster(admin_pb2.GetClusterRequest(), metadata=(("fits", "x" * (HEAD_BYTES_MAX // 2)),), timeout=60)

    with_broker(tmp_path, scenario)


def test_a_client_that_closes_its_half_is_answered_and_one_that_says_nothing_more_is_let_go(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with bystander(broker):
            half = await connected(broker.http_address)
            half.send(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            half.shutdown(socket.SHUT_WR)
            assert (await end_of(half)).startswith((b"HTTP/1.1 200 ", b""))
            silent = [await connected(address) for address in (broker.http_address, broker.grpc_address)]
            for one in silent:
                one.shutdown(socket.SHUT_WR)
                await end_of(one)
            await until(lambda: broker.http.connections.count == 1)

    with_broker(tmp_path, scenario)


def test_handshakes_that_never_end_hold_nothing_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT_S", 2.0)
    monkeypatch.setattr(grpc_server, "HANDSHAKE_TIMEOUT_S", 2)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of one

    async def scenario(served: TlsCluster) -> None:
        connections = served.broker._http.connections
        async with served.session() as session, served.channel() as channel:
            stub: admin_pb2_grpc.ClusterStub = admin_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
            addresses = (served.broker.grpc_address, served.broker.http_address)
            silent = await asyncio.gather(*(connected(addresses[number % 2]) for number in range(200)))
            for number, one in enumerate(silent):
                one.send(hello[: number % (len(hello) + 1)])
            await until(lambda: connections.count > 50)  # they are counted
            async with session.get("/livez") as answer:
                assert answer.status == 200
            await stub.GetCluster(admin_pb2.GetClusterRequest(), timeout=60)
            for one in silent:
                await end_of(one)
            await until(lambda: connections.count == 1)
            async with session.get("/livez") as answer:
                assert answer.status == 200
            await stub.GetCluster(admin_pb2.GetClusterRequest(), timeout=60)

    with_tls_cluster(tmp_path, scenario)


def test_plain_text_and_garbage_at_tls_ports_do_not_block_other_clients(tmp_path: Path) -> None:
    async def scenario(served: TlsCluster) -> None:
        async with served.session() as session, served.channel() as channel:
            stub: admin_pb2_grpc.ClusterStub = admin_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
            for sent in (PREFACE + SETTINGS, b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 1000, b"\x16\x03\x01\xff\xff" + b"x" * 70_000):
                for address in (served.broker.http_address, served.broker.grpc_address):
                    for _ in range(5):
                        nonsense = await connected(address)
                        with suppress(ConnectionError):
                            await asyncio.get_running_loop().sock_sendall(nonsense, sent)
                        nonsense.close()
                async with session.get("/livez") as answer:
                    assert answer.status == 200
                await stub.GetCluster(admin_pb2.GetClusterRequest(), timeout=60)
            await until(lambda: served.broker._http.connections.count == 1)

    with_tls_cluster(tmp_path, scenario)


def test_a_reader_that_takes_nothing_is_cut_off_behind_tls_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "WRITE_STALL_S", 0.1)

    async def scenario(served: TlsCluster) -> None:
        connections = served.broker._http.connections
        async with served.session() as session:
            async with session.post("/v1/topics", json={"name": "orders", "partition_count": 1}) as made:
                assert made.status == 201
            for _ in range(8):
                async with session.post("/v1/topics/orders/records", json={"records": [{"value": "x" * 900_000}]}) as took:
                    assert took.status == 200
            plain = await connected(served.broker.http_address)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            _, stalled = await asyncio.open_connection(sock=plain, ssl=served.context(), server_hostname="127.0.0.1", limit=4096)
            stalled.transport.pause_reading()  # type: ignore[attr-defined]  # it is one that reads
            await until(lambda: connections.count == 2)
            stalled.write(b"GET /v1/topics/orders/partitions/0/records?max_bytes=8388608 HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await until(lambda: connections.count == 1)
            stalled.transport.abort()

    with_tls_cluster(tmp_path, scenario)
