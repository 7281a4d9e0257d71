"""Consumer groups of three real brokers: members go on in their generation when its coordinator dies, or etcd is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gateway.proto import admin_pb2
from metadata.errors import AlreadyExists, NoCoordinator, OutcomeUnknown, Unavailable
from segments.concurrency import gather_all
from tests.cluster.three_brokers import until
from tests.kit.etcd_server import EtcdMember, running_etcd
from tests.kit.gateway.group_calls import GroupCalls, answered, offset, refused
from tests.kit.gateway.stubs import cluster_stub, topics_stub
from tests.kit.servers import free_port
from tests.kit.tcp_proxy import TcpProxy, tcp_proxy
from tests.tidelog.cli.broker.test_serve_cluster import ServedBroker, ServedCluster

pytestmark = pytest.mark.slow
IDS = ("b1", "b2", "b3")
# Of members: those without heartbeats stay, however long the others take.
SESSION_MS = 60_000
# However late the second member of a group comes on a busy machine, it comes before the first generation begins.
JOIN_TOGETHER = ("--group-initial-rebalance-delay-ms", "3000")


class Endpoints:
    """Of all brokers, which may not all be there."""

    def __init__(
        self, brokers: dict[str, ServedBroker], etcd: EtcdMember, way: TcpProxy, channels: dict[str, grpc.aio.Channel]
    ) -> None:
        self.brokers = brokers
        self.etcd = etcd
        self.way = way
        """Of b2 to etcd."""
        self._channels = channels
        self._names = count()

    def group(self, name: str, at: str) -> GroupCalls:
        return GroupCalls(self._channels[at], name)

    async def coordinated_by(self, broker_id: str) -> str:
        """The name of a group that this broker coordinates, as all see it; another one each time."""

        async def all_are_there() -> bool:
            stubs = [cluster_stub(channel) for channel in self._channels.values()]
            listed = [await answered_in_time(lambda to=to: to.ListBrokers(admin_pb2.ListBrokersRequest())) for to in stubs]  # type: ignore[misc]  # mypy infers no lambda with defaults
            return all(len(answer.brokers) == len(IDS) for answer in listed)

        await until(all_are_there)
        for _ in range(1_000):
            name = str(next(self._names))
            if (await answered_in_time(self.group(name, IDS[0]).find_coordinator)).broker_id == broker_id:
                return name
        raise AssertionError(f"{broker_id} coordinates nothing")

    async def create_topic(self) -> None:
        topic = admin_pb2.Topic(name="orders", partition_count=6)
        with suppress(AlreadyExists):  # by an earlier attempt
            await answered_in_time(
                lambda: topics_stub(self._channels[IDS[0]]).CreateTopic(admin_pb2.CreateTopicRequest(topic=topic))
            )

    async def stable(self, coordinator: str, endpoints: Sequence[str]) -> tuple[list[GroupCalls], list[str]]:
        """A group of one member for each of these brokers: their calls and ids. Another group where its coordinator loses its lease
        before all have joined."""

        async def joined() -> tuple[list[GroupCalls], list[str]] | None:
            name = await self.coordinated_by(coordinator)
            calls = [self.group(name, at) for at in endpoints]
            try:
                return calls, await stable(calls)
            except Unavailable:
                return None

        return await until(joined)


@asynccontextmanager
async def endpoints(directory: Path, etcd: EtcdMember, processes: ExitStack) -> AsyncIterator[Endpoints]:
    async with tcp_proxy(etcd.client_port) as way, AsyncExitStack() as channels:
        clusters = {at: ServedCluster(directory, way.url if at == "b2" else etcd.url, processes) for at in IDS}
        ports = {at: free_port() for at in IDS}
        brokers = {
            at: clusters[at].start(at, "--grpc", f"127.0.0.1:{port}", "--session-timeout-ms", "2000", *JOIN_TOGETHER)
            for at, port in ports.items()
        }
        for broker in brokers.values():
            await asyncio.to_thread(broker.until_said, "others reach it at")
        opened = {
            at: await channels.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}")) for at, port in ports.items()
        }
        yield Endpoints(brokers, etcd, way, opened)


def with_endpoints(directory: Path, scenario: Callable[[Endpoints], Awaitable[None]]) -> None:
    async def run(etcd: EtcdMember, processes: ExitStack) -> None:
        async with asyncio.timeout(250), endpoints(directory, etcd, processes) as opened:
            await scenario(opened)

    with running_etcd(directory) as etcd, ExitStack() as processes:
        asyncio.run(run(etcd, processes))


async def stable(calls: Sequence[GroupCalls]) -> list[str]:
    """A first generation of one member for each: their ids."""
    joined = await gather_all(answered(each.join(session_timeout_ms=SESSION_MS)) for each in calls)
    ids = [each.member_id for each in joined]
    assert {each.generation for each in joined} == {1}
    assignments = {member: member.encode() for member in ids}
    synced = await gather_all(
        answered(each.sync(member, 1, assignments if member == joined[0].leader else None))
        for each, member in zip(calls, ids, strict=True)
    )
    assert [each.assignment.decode() for each in synced] == ids
    return ids


async def answered_in_time(call: Callable[[], Awaitable[Any]]) -> Any:
    """Asks again as members do, while the group has no coordinator."""

    async def ask() -> tuple[Any] | None:
        try:
            return (await answered(call()),)
        except (Unavailable, OutcomeUnknown):
            return None

    return (await until(ask))[0]


def test_the_next_coordinator_goes_on_in_the_generation_when_theirs_was_killed(tmp_path: Path) -> None:
    async def scenario(opened: Endpoints) -> None:
        await opened.create_topic()
        calls, ids = await opened.stable("b2", ("b1", "b3"))
        committed = await answered_in_time(lambda: calls[0].commit(offset(7), member_id=ids[0], generation=1))
        assert committed.errors[0].code == 0
        waiting = asyncio.ensure_future(refused(opened.group(calls[0].group, "b1").join(member_id="")))
        await asyncio.sleep(0)
        opened.brokers["b2"].process.kill()
        assert isinstance(await waiting, Unavailable)
        for each, member in zip(calls, ids, strict=True):
            await answered_in_time(lambda each=each, member=member: each.heartbeat(member, 1))  # type: ignore[misc]  # mypy infers no lambda with defaults
        assert [found.offset for found in (await answered_in_time(calls[1].offsets)).offsets] == [7]
        committed = await answered_in_time(lambda: calls[1].commit(offset(8), member_id=ids[1], generation=1))
        assert committed.errors[0].code == 0
        assert (await answered_in_time(calls[0].find_coordinator)).broker_id in {"b1", "b3"}

    with_endpoints(tmp_path, scenario)


async def keep_alive(calls: Sequence[GroupCalls], ids: Sequence[str]) -> None:
    """As members do. Raises what would make them join again."""
    while True:
        for each, member in zip(calls, ids, strict=True):
            with suppress(Unavailable):
                await answered(each.heartbeat(member, 1))
        await asyncio.sleep(0.5)


def test_heartbeats_need_no_etcd_and_what_is_stored_is_refused_or_unknown_until_it_is_back(tmp_path: Path) -> None:
    async def scenario(opened: Endpoints) -> None:
        await opened.create_topic()
        other = await opened.coordinated_by("b3")
        calls, ids = await opened.stable("b2", ("b1", "b2"))
        opened.etcd.kill()
        for each, member in zip(calls, ids, strict=True):
            await answered_in_time(lambda each=each, member=member: each.heartbeat(member, 1))  # type: ignore[misc]  # mypy infers no lambda with defaults
        async with asyncio.TaskGroup() as tasks:
            living = tasks.create_task(keep_alive(calls, ids))
            joining = tasks.create_task(refused(opened.group(other, "b1").join()))
            committing = tasks.create_task(refused(calls[0].commit(offset(7), member_id=ids[0], generation=1)))
            assert isinstance(await joining, Unavailable)
            assert isinstance(await committing, Unavailable | OutcomeUnknown)
            for each, member in zip(calls, ids, strict=True):
                await answered_in_time(lambda each=each, member=member: each.heartbeat(member, 1))  # type: ignore[misc]  # mypy infers no lambda with defaults
            opened.etcd.start()
            committed = await answered_in_time(lambda: calls[0].commit(offset(8), member_id=ids[0], generation=1))
            assert committed.errors[0].code == 0
            assert [found.offset for found in (await answered_in_time(calls[1].offsets)).offsets] == [8]
            living.cancel()

    with_endpoints(tmp_path, scenario)


def test_a_coordinator_without_etcd_answers_no_member_once_another_leads_its_partitions(tmp_path: Path) -> None:
    """It finds its seal on the bucket. Until then no other takes its members for lost: their sessions have restarted."""

    async def scenario(opened: Endpoints) -> None:
        await opened.create_topic()
        calls, ids = await opened.stable("b2", ("b1", "b2"))
        opened.way.break_("refuses")

        async def refused_there() -> bool:
            try:
                await answered(calls[1].heartbeat(ids[1], 1))
            except NoCoordinator:
                return True
            return False

        await until(refused_there)
        for member in ids:
            await answered_in_time(lambda member=member: calls[0].heartbeat(member, 1))  # type: ignore[misc]  # mypy infers no lambda with defaults
        committed = await answered_in_time(lambda: calls[0].commit(offset(8), member_id=ids[1], generation=1))
        assert committed.errors[0].code == 0

    with_endpoints(tmp_path, scenario)
