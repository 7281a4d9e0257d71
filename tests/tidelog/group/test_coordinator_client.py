"""What members ask over gRPC: found at the coordinator, followed when it moves, and reached through others where it can't be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from metadata.errors import (
    InvalidGroupName,
    MemberIdRequired,
    NotCoordinator,
    OutcomeUnknown,
    StaleGeneration,
    Throttled,
    Unavailable,
    UnknownMember,
    UnknownPartition,
    UnknownTopic,
)
from metadata.groups.model import NO_GENERATION, NO_INSTANCE, NO_MEMBER, Generation, MemberId, SyncRequest
from tests.kit.gateway.small_broker import SmallBroker, small_broker, until
from tests.kit.metadata.played_group import request
from tests.kit.tidelog.producing import quick
from tidelog.group.coordinator_client import GrpcCoordinatorClient
from tidelog.group.positions import Offset
from tidelog.settings import settings_from
from tidelog.transport.connection import Connection, Stubs
from tidelog.transport.rpc_errors import error_of_rpc

pytestmark = pytest.mark.slow

HERE, NOWHERE = "127.0.0.1:1", "127.0.0.1:2"


def with_calls(tmp_path: Path, scenario: Callable[[SmallBroker, GrpcCoordinatorClient, Connection], Awaitable[None]]) -> None:
    async def run() -> None:
        settings = settings_from(quick())
        async with asyncio.timeout(60), small_broker(tmp_path) as broker:
            connection = Connection([f"grpc://{broker.grpc_address}"], settings)
            try:
                await connection.open()
                await scenario(broker, GrpcCoordinatorClient(connection, settings), connection)
            finally:
                await connection.close()

    asyncio.run(run())


async def member(calls: GrpcCoordinatorClient, group: str = "g") -> MemberId:
    """The only one of its group's first generation."""
    joined = await calls.join(group, request())
    await calls.sync(group, SyncRequest(joined.member_id, NO_INSTANCE, joined.generation, {joined.member_id: b"all of it"}))
    return joined.member_id


def test_a_member_joins_syncs_beats_commits_and_leaves(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, calls: GrpcCoordinatorClient, connection: Connection) -> None:
        with pytest.raises(MemberIdRequired) as reported:
            await calls.join("g", request(id_required=True))
        joined = await calls.join("g", request(str(reported.value.details["member_id"])))
        at, generation = joined.member_id, joined.generation
        assert (joined.leader, joined.protocol, generation) == (at, "range", 1)
        assert joined.members[0].metadata == request().protocols[0].metadata
        synced = await calls.sync("g", SyncRequest(at, NO_INSTANCE, generation, {at: b"a"}, "consumer", "range"))
        assert synced == ("consumer", "range", b"a")
        await calls.heartbeat("g", at, NO_INSTANCE, generation)
        with pytest.raises(StaleGeneration):
            await calls.heartbeat("g", at, NO_INSTANCE, Generation(7))
        assert await calls.commit("g", at, NO_INSTANCE, generation, {("orders", 0): Offset(7, 3), ("orders", 1): Offset(0)}) == {}
        topic_id = broker.topic_cache.get("orders").id
        wanted = [("orders", number) for number in range(3)]
        assert await calls.committed("g", wanted) == {("orders", 0): (7, 3, topic_id), ("orders", 1): (0, -1, topic_id)}
        assert await calls.leave("g", [(at, NO_INSTANCE)]) == [None]
        (error,) = await calls.leave("g", [(at, NO_INSTANCE)])
        assert isinstance(error, UnknownMember)

    with_calls(tmp_path, scenario)


def test_offsets_that_cannot_be_committed_or_fetched_have_an_error_each(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, calls: GrpcCoordinatorClient, connection: Connection) -> None:
        offsets = {("orders", 0): Offset(7), ("orders", 9): Offset(7), ("nothing", 0): Offset(7)}
        refused = await calls.commit("g", NO_MEMBER, NO_INSTANCE, NO_GENERATION, offsets)
        assert {at: type(error) for at, error in refused.items()} == {("orders", 9): UnknownPartition, ("nothing", 0): UnknownTopic}
        found = await calls.committed("g", offsets)
        assert isinstance(found["orders", 0], Offset)
        assert isinstance(found["nothing", 0], UnknownTopic)

    with_calls(tmp_path, scenario)


def test_the_coordinator_is_asked_for_once_until_it_refuses(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, calls: GrpcCoordinatorClient, connection: Connection) -> None:
        asked = count_questions(connection)
        at = await member(calls)
        for _ in range(5):
            await calls.heartbeat("g", at, NO_INSTANCE, Generation(1))
        assert asked == ["g"]
        with pytest.raises(UnknownMember):
            await calls.heartbeat("g", MemberId("unknown"), NO_INSTANCE, Generation(1))
        assert asked == ["g"]
        calls._coordinators["g"] = NOWHERE
        with pytest.raises(Unavailable):
            await calls.heartbeat("g", at, NO_INSTANCE, Generation(1))
        await calls.heartbeat("g", at, NO_INSTANCE, Generation(1))
        assert asked == ["g", "g"]
        with pytest.raises(InvalidGroupName):
            await calls.heartbeat("", at, NO_INSTANCE, Generation(1))

    with_calls(tmp_path, scenario)


def test_a_throttling_coordinator_is_asked_again_and_no_other_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: SmallBroker, calls: GrpcCoordinatorClient, connection: Connection) -> None:
        at = await member(calls)
        asked, ways = count_questions(connection), list[str]()
        ask_once = connection.ask_once

        async def busy(ask: Any, **arguments: Any) -> Any:
            """Fails twice, as gRPC does where a call was not taken up in time."""
            ways.append(arguments["at"])
            if len(ways) % 3:
                ended = grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, grpc.aio.Metadata(), grpc.aio.Metadata(), "CANCELLED")
                raise error_of_rpc(ended, address=arguments["at"], writes=arguments["writes"])
            return await ask_once(ask, **arguments)

        monkeypatch.setattr(connection, "ask_once", busy)
        with pytest.raises(Throttled):
            await calls.heartbeat("g", at, NO_INSTANCE, Generation(1))
        with pytest.raises(Throttled):
            await calls.heartbeat("g", at, NO_INSTANCE, Generation(1))
        await calls.heartbeat("g", at, NO_INSTANCE, Generation(1))
        assert await calls.commit("g", at, NO_INSTANCE, Generation(1), {("orders", 0): Offset(7)}) == {}
        assert (asked, set(ways), len(ways)) == ([], {broker.grpc_address}, 6)

    with_calls(tmp_path, scenario)


def test_a_coordinator_that_can_not_be_connected_is_reached_through_another_broker(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, calls: GrpcCoordinatorClient, connection: Connection) -> None:
        at = await member(calls)
        coordinated_by(connection, NOWHERE)
        calls._coordinators.clear()
        with pytest.raises(Unavailable):
            await calls.heartbeat("g", at, NO_INSTANCE, Generation(1))
        await calls.heartbeat("g", at, NO_INSTANCE, Generation(1))
        calls._detour_until_s.clear()
        assert await calls.commit("g", at, NO_INSTANCE, Generation(1), {("orders", 0): Offset(7)}) == {}

    with_calls(tmp_path, scenario)


def test_a_join_that_waits_at_a_former_coordinator_ends_once_there_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.group.coordinator_client.COORDINATOR_CHECK_S", 0.02)

    async def scenario(broker: SmallBroker, calls: GrpcCoordinatorClient, connection: Connection) -> None:
        await member(calls)
        waiting = asyncio.ensure_future(calls.join("g", request()))  # for the other member to join again
        await asyncio.sleep(0.1)
        assert not waiting.done()
        coordinated_by(connection, HERE)
        with pytest.raises(NotCoordinator):
            await waiting
        assert calls._coordinators["g"] == HERE

    with_calls(tmp_path, scenario)


def test_a_commit_whose_answer_is_lost_is_repeated_and_ends_as_outcome_unknown(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, calls: GrpcCoordinatorClient, connection: Connection) -> None:
        at = await member(calls)
        lost = lose_answers(connection, 1)
        assert await calls.commit("g", at, NO_INSTANCE, Generation(1), {("orders", 0): Offset(7)}) == {}
        assert len(lost) == 1
        lose_answers(connection, 1_000_000)
        calls._settings = settings_from(quick(request_timeout_ms=1_000))
        with pytest.raises(OutcomeUnknown):
            await calls.commit("g", at, NO_INSTANCE, Generation(1), {("orders", 0): Offset(8)})

    with_calls(tmp_path, scenario)


def test_a_member_that_hangs_up_waits_no_more_at_the_coordinator(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, calls: GrpcCoordinatorClient, connection: Connection) -> None:
        await member(calls)
        waiting = asyncio.ensure_future(calls.join("g", request()))
        group = broker.coordinated_groups._groups["g"]
        async with asyncio.timeout(60):
            await until(lambda: bool(group.group.joining))
            waiting.cancel()
            await until(lambda: not group.group.joining and len(group.group.members) == 1)

    with_calls(tmp_path, scenario)


def count_questions(connection: Connection) -> list[str]:
    asked: list[str] = []
    ask = connection.coordinator

    async def coordinator(group: str) -> str:
        asked.append(group)
        return await ask(group)

    connection.coordinator = coordinator  # type: ignore[method-assign]
    return asked


def coordinated_by(connection: Connection, address: str) -> None:
    async def coordinator(group: str) -> str:
        return address

    connection.coordinator = coordinator  # type: ignore[method-assign]


def lose_answers(connection: Connection, count: int) -> list[str]:
    """Lets `count` calls that write succeed, and loses their answers."""
    lost: list[str] = []
    ask_once = connection.ask_once

    async def loses(attempt: Callable[[Stubs, float], Awaitable[object]], *, at: str, writes: bool, timeout_s: float) -> object:
        answer = await ask_once(attempt, at=at, writes=writes, timeout_s=timeout_s)
        if writes and len(lost) < count:
            lost.append(at)
            raise OutcomeUnknown("the answer was lost")
        return answer

    connection.ask_once = loses  # type: ignore[method-assign, assignment]
    return lost
