"""The ports of the listeners are taken first: if one is in use, nothing was written, and no client waits at the other."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.net.addresses import host_and_port
from gateway.net.ports import reserve_ports, take_port
from gateway.process.broker_process import run_broker
from gateway.settings import load_settings
from metadata.errors import InvalidArgument, Unavailable

pytestmark = pytest.mark.slow

ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")

FREE = {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}


@pytest.fixture
def taken() -> Iterator[str]:
    """Where somebody else listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


@pytest.mark.parametrize("listener", ["http", "grpc"])
def test_a_start_with_a_port_in_use_writes_nothing_and_the_next_start_succeeds(listener: str, taken: str, tmp_path: Path) -> None:
    async def start(data_dir: Path, **ports: str) -> None:
        bucket = f"file://{tmp_path / 'bucket'}"
        async with run_broker(load_settings({"data_dir": str(data_dir), "bucket": bucket, **FREE, **ports}, {})):
            pass

    with pytest.raises(Unavailable, match=f"the port {taken.rpartition(':')[2]} on 127.0.0.1 is taken") as refused:
        asyncio.run(start(tmp_path / "first", **{listener: taken}))
    assert f"--{listener} HOST:PORT" in refused.value.hint
    assert list(tmp_path.rglob("*")) == []
    asyncio.run(start(tmp_path / "second"))  # with other metadata


def test_where_the_second_port_is_taken_the_first_is_given_back(taken: str) -> None:
    async def scenario() -> None:
        free = await take_port("127.0.0.1:0", listener="HTTP")
        free.close()
        with pytest.raises(Unavailable):
            await reserve_ports(http=free.address, grpc=taken)
        again = await take_port(free.address, listener="HTTP")
        again.close()

    asyncio.run(scenario())


def test_connections_to_a_taken_port_are_refused_until_its_listener_listens() -> None:
    async def scenario() -> None:
        port = await take_port("127.0.0.1:0", listener="HTTP")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*port.address.split(":"))
        listening = port.listen()
        _, writer = await asyncio.open_connection(*port.address.split(":"))
        writer.close()
        await writer.wait_closed()
        port.close()
        assert all(each.fileno() >= 0 for each in listening), "they are the listener's by now"
        for each in listening:
            each.close()

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere two can't bind one port at all")
@pytest.mark.parametrize("listener", ["HTTP", "gRPC"])
def test_a_taken_port_is_refused_to_others_before_and_after_its_listener_listens(listener: str) -> None:
    async def scenario() -> None:
        one = await take_port("127.0.0.1:0", listener=listener)
        with pytest.raises(Unavailable, match="is taken"):
            await take_port(one.address, listener="HTTP")
        with closing(one.listen()[0]), pytest.raises(Unavailable, match="is taken"):
            await take_port(one.address, listener=listener)

    asyncio.run(scenario())


def test_a_listener_can_take_a_port_right_after_another_closed_its_connections() -> None:
    async def scenario() -> None:
        first = await take_port("127.0.0.1:0", listener="HTTP")
        with closing(first.listen()[0]) as listening, closing(socket.socket()) as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, listening.getsockname())
            accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
            accepted.close()  # first, so that the system remembers the connection here
        again = await take_port(first.address, listener="HTTP")
        with closing(again.listen()[0]):
            _, writer = await asyncio.open_connection(*first.address.split(":"))
            writer.close()
            await writer.wait_closed()

    asyncio.run(scenario())


@ipv6
def test_every_address_over_ipv6_is_every_address_over_ipv4_for_grpc_alone() -> None:
    async def scenario() -> None:
        with closing(socket.create_server(("0.0.0.0", 0))) as other:
            address = f"[::]:{other.getsockname()[1]}"
            with pytest.raises(Unavailable, match="is taken"):
                await take_port(address, listener="gRPC")
            port = await take_port(address, listener="HTTP")
            port.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("listener", ["HTTP", "gRPC"])
def test_of_a_host_with_an_address_that_is_not_here_the_others_are_taken(listener: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0))
    here = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))

    def found(*addresses: object) -> None:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: list(addresses))

    async def scenario() -> None:
        for addresses in ((absent, here), (here, absent)):
            found(*addresses)
            port = await take_port("both:0", listener=listener)
            sockets = port.listen()
            assert [each.getsockname()[0] for each in sockets] == ["127.0.0.1"]
            for each in sockets:
                each.close()
        found(absent)
        with pytest.raises(InvalidArgument, match="can't listen on both:0"):
            await take_port("both:0", listener=listener)

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["192.0.2.1:8080", "127.0.0.1:99999", "127.0.0.1", ":8080", "127.0.0.1:http"])
@pytest.mark.parametrize("listener", ["HTTP", "gRPC"])
def test_an_address_that_can_t_be_opened_is_refused_with_a_hint(address: str, listener: str) -> None:
    with pytest.raises(InvalidArgument, match=r"can't listen on|, not HOST:PORT") as refused:
        asyncio.run(take_port(address, listener=listener))
    assert f"--{listener.lower()}" in refused.value.hint


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:99999", "http is '127.0.0.1:99999', not HOST:PORT: a port is a number from 0 to 65535"),
        ("127.0.0.1:-1", "a port is a number from 0 to 65535"),
        ("127.0.0.1:" + "9" * 5_000, "a port is a number from 0 to 65535"),
        ("127.0.0.1:http", "a port is a number from 0 to 65535"),
        ("http://127.0.0.1:8080", "http is 'http://127.0.0.1:8080', not HOST:PORT"),
        ("me@127.0.0.1:8080", "not HOST:PORT"),
        ("127.0.0.1 :8080", "not HOST:PORT"),
        (":8080", "http is ':8080', not HOST:PORT"),
        ("::1:8080", "http is '::1:8080', not HOST:PORT"),
        ("8080", "http is '8080', not HOST:PORT"),
    ],
)
def test_an_invalid_address_is_refused_with_the_setting_and_the_reason(address: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        host_and_port(address, name="http")
    assert said in refused.value.message
    assert "--http 127.0.0.1:8080" in refused.value.hint


def test_every_address_of_a_host_has_the_same_port() -> None:
    async def scenario() -> None:
        port = await take_port("localhost:0", listener="HTTP")
        sockets = port.listen()
        assert {each.getsockname()[1] for each in sockets} == {int(port.address.rpartition(":")[2])}
        for each in sockets:
            each.close()

    asyncio.run(scenario())
