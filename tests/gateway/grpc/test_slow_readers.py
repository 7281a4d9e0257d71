"""A gRPC reader that takes nothing loses its connection when others wait for the room of its answer; no other reader does."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from gateway.grpc import slow_readers
from gateway.grpc.slow_readers import cut_off
from gateway.settings import GatewaySettings
from segments.records.columns import encode_records
from segments.settings import MIB
from tests.gateway.grpc.fetch.test_service import fetch_of, produce
from tests.gateway.grpc.produce.test_service import serve
from tests.kit.gateway.small_broker import SmallBroker, until
from tests.kit.gateway.stalled_readers import closing, stalled_grpc

pytestmark = pytest.mark.slow


def is_open(reader: socket.socket) -> bool:
    """Whether its broker still holds the connection: reads what has come."""
    reader.setblocking(False)
    try:
        while reader.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


def test_readers_that_take_nothing_are_cut_off_when_others_wait_for_their_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_readers, "BYTES_PER_SECOND_MIN", 100 * MIB)
    cut: set[str] = set()

    def seen(peers: set[str], local_address: str) -> int:
        cut.update(peers)
        return cut_off(peers, local_address)

    monkeypatch.setattr(slow_readers, "cut_off", seen)

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, *[encode_records([(None, b"x" * 1000, (), 0)] * 250)] * 20)
        with closing([stalled_grpc(broker.grpc_address, fetch_of(0)) for _ in range(30)]) as stalled:
            peers = {"ipv4:{}:{}".format(*reader.getsockname()) for reader in stalled}
            answer = (await stub.Fetch(fetch_of(0, min_bytes=1, max_wait_ms=15_000))).partitions[0]
            assert answer.next_offset >= 250
            await until(lambda: not all(is_open(reader) for reader in stalled))
            assert set() < cut <= peers

    serve(tmp_path, scenario, settings=GatewaySettings(answer_bytes_max=4 * MIB, answer_timeout_ms=100))


def test_a_slow_reader_keeps_its_connection_while_no_other_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_readers, "BYTES_PER_SECOND_MIN", 100 * MIB)

    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, *[encode_records([(None, b"x" * 1000, (), 0)] * 100)] * 5)
        with stalled_grpc(broker.grpc_address, fetch_of(0)) as slow:
            for _ in range(3):
                assert (await stub.Fetch(fetch_of(0))).partitions[0].next_offset == 500
                await asyncio.sleep(0.1)
            assert is_open(slow)

    serve(tmp_path, scenario, settings=GatewaySettings(answer_timeout_ms=20))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_only_the_connection_between_both_addresses_is_shut_down(family: socket.AddressFamily, tmp_path: Path) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    kind = "ipv4:127.0.0.1" if family == socket.AF_INET else "ipv6:%5B::1%5D"
    with socket.create_server((host, 0), family=family) as listener, (tmp_path / "file").open("w"):
        port = listener.getsockname()[1]
        clients = [socket.create_connection((host, port)) for _ in range(3)]
        served = [listener.accept()[0] for _ in clients]
        with closing([*clients, *served]):
            peers = {f"{kind}:{client.getsockname()[1]}" for client in clients[1:]}
            assert cut_off(peers, f"{host}:{port - 1}") == 0
            assert cut_off({f"{kind}:1"}, f"{host}:{port}") == 0
            assert cut_off(peers, f"{host}:{port}") == 2
            assert [is_open(client) for client in clients] == [True, False, False]
            assert listener.fileno() >= 0


def test_a_peer_that_has_no_address_is_not_looked_for() -> None:
    assert cut_off({"unix:/tmp/socket", "unknown"}, "127.0.0.1:9090") == 0
