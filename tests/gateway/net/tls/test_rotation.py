"""Certificates, keys and authorities that are replaced while producers and consumers are at work on both listeners."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import grpc
import grpc.aio
import pytest

import tidelog
from gateway.proto import admin_pb2, admin_pb2_grpc
from tests.kit.certificates import Authority
from tests.kit.gateway.small_broker import until
from tests.kit.gateway.tls_brokers import TlsCluster, with_tls_cluster

pytestmark = pytest.mark.slow

PARTITIONS = 4
# Records that each producer has acknowledged between two changes.
BETWEEN = 20


class HttpProducer:
    """One connection, over which it sends request after request. It can't reconnect: a connection that is dropped ends it."""

    def __init__(self, served: TlsCluster) -> None:
        self._served = served
        self.acknowledged = 0

    async def run(self) -> None:
        host, port = self._served.broker.http_address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=self._served.context())
        try:
            for number in itertools.count():
                body = b'{"records":[{"value":"http-%d"}]}' % number
                path = b"/v1/topics/orders/records?partition=%d" % (number % PARTITIONS)
                head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                writer.write(head % (path, len(body)) + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 200 "), answer
                length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                self.acknowledged += 1
        finally:
            writer.transport.abort()


class SdkProducer:
    def __init__(self, log: tidelog.Client) -> None:
        self._log = log
        self.acknowledged = 0

    async def run(self) -> None:
        for number in itertools.count():
            await self._log.produce("orders", f"grpc-{number}", partition=number % PARTITIONS)
            self.acknowledged += 1


class SdkConsumer:
    def __init__(self, log: tidelog.Client) -> None:
        self._log = log
        self.values: list[str] = []

    async def run(self) -> None:
        async for record in self._log.consume("orders"):
            self.values.append((record.value or b"").decode())


class HttpStream:
    """Server-sent events over one connection, without end."""

    def __init__(self, served: TlsCluster) -> None:
        self._served = served
        self.count = 0

    async def run(self) -> None:
        async with (
            self._served.session() as session,
            session.get("/v1/topics/orders/records?offset=earliest", headers={"accept": "text/event-stream"}) as reported,
        ):
            async for line in reported.content:
                self.count += line.startswith(b"data:") and b'"value"' in line
        raise AssertionError("the stream ended")


class GrpcConnection:
    """A channel that must stay connected: states other than READY are noted."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.lost: list[grpc.ChannelConnectivity] = []

    async def run(self) -> None:
        state = self._channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state()
        await self._channel.wait_for_state_change(state)
        self.lost.append(self._channel.get_state())


async def reaches(served: TlsCluster, ca: bytes) -> bool:
    """Whether a new connection of each kind comes about for who believes these authorities."""
    came = []
    try:
        async with served.session(ca=ca) as session, session.get("/v1/cluster") as answer:
            came.append(answer.status == 200)
    except OSError:
        came.append(False)
    async with served.channel(ca=ca) as channel:
        stub: admin_pb2_grpc.ClusterStub = admin_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
        try:
            await stub.GetCluster(admin_pb2.GetClusterRequest(), timeout=60)
            came.append(True)
        except grpc.aio.AioRpcError:
            came.append(False)
    assert came[0] == came[1], "both listeners show the same certificate"
    return came[0]


def test_no_connection_is_dropped_while_certificates_and_authorities_are_replaced(tmp_path: Path) -> None:
    async def scenario(served: TlsCluster) -> None:
        files, first, second = served.files, served.authority, Authority("second authority")

        async def reload() -> list[bool]:
            found = []
            for broker in served.cluster.brokers:
                assert broker.tls is not None
                found.append(await broker.tls.reload())
            return found

        def put(pair: tuple[bytes, bytes]) -> None:
            files.cert.write_bytes(pair[0])
            files.key.write_bytes(pair[1])

        async with (
            tidelog.connect(f"https://{served.broker.http_address}", **served.credentials()) as log,
            served.channel() as channel,
            asyncio.TaskGroup() as tasks,
        ):
            await log.topics.create("orders", partitions=PARTITIONS)
            producers: list[HttpProducer | SdkProducer] = [HttpProducer(served), SdkProducer(log)]
            consumer, stream, connection = SdkConsumer(log), HttpStream(served), GrpcConnection(channel)
            running = [tasks.create_task(producer.run()) for producer in producers]
            running += [tasks.create_task(work) for work in (consumer.run(), stream.run(), connection.run())]

            async def under_way() -> None:
                goals = [producer.acknowledged + BETWEEN for producer in producers]
                await until(lambda: all(made.acknowledged >= goal for made, goal in zip(producers, goals, strict=True)))

            await under_way()
            put(first.sign("server"))
            assert await reload() == [True, True]
            await under_way()

            cert, key = first.sign("server")
            files.cert.write_bytes(cert)
            assert await reload() == [False, False], "its key has not come yet"
            await under_way()
            files.key.write_bytes(key[: len(key) // 2])
            assert await reload() == [False, False]
            await under_way()
            files.key.write_bytes(key)
            assert await reload() == [True, True]
            await under_way()

            files.ca.write_bytes(first.pem + second.pem)
            assert await reload() == [True, True]
            put(second.sign("server"))
            assert await reload() == [True, True]
            assert await reaches(served, second.pem)
            assert not await reaches(served, first.pem)
            await under_way()

            client_cert, client_key = second.sign("client")
            files.client_cert.write_bytes(client_cert)
            files.client_key.write_bytes(client_key)
            files.ca.write_bytes(second.pem)
            assert await reload() == [True, True]
            assert await reaches(served, second.pem)
            await under_way()

            assert connection.lost == []
            for task in running:
                assert not task.done()
            sent = sum(producer.acknowledged for producer in producers)
            for task in running[:2]:
                task.cancel()
            await until(lambda: len(consumer.values) >= sent and stream.count >= sent)
            for task in running:
                task.cancel()
            assert log.outcomes.refused == log.outcomes.unknown == 0
            assert len(consumer.values) == len(set(consumer.values)), "none twice"

    with_tls_cluster(tmp_path, scenario, count=2)
