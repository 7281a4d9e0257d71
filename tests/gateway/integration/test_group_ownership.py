"""What members own by their own clocks, where writes of their group are slow or calls of theirs are lost: nothing of others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metadata.errors import RebalanceInProgress, TidelogError
from metadata.group_member.settings import MemberSettings
from metadata.group_member.state import MemberPhase, MemberState
from metadata.groups.model import Generation, Joined, MemberId
from tests.kit.gateway.coordinated_groups import Cluster, Coordinated, with_cluster
from tests.kit.metadata.played_group import offers
from tests.simulation.virtual_loop import virtual_loop

REBALANCE_S, SESSION_S = 20, 60
ASKS: dict[str, Any] = {
    "rebalance_ms": 1000 * REBALANCE_S,
    "session_ms": 1000 * SESSION_S,
    "protocols": offers(names=("cooperative-sticky",)),
}


class Owner:
    """A member that owns a partition, and what its own clock allows it."""

    def __init__(self, at: Coordinated, member_id: str) -> None:
        self.at = at
        settings = MemberSettings(session_timeout_ms=1000 * SESSION_S, max_poll_interval_ms=1000 * REBALANCE_S)
        self.member_state = MemberState(settings)
        self.member_state.member_id, self.member_state.generation, self.member_state.protocol = (
            MemberId(member_id),
            Generation(1),
            "cooperative-sticky",
        )
        self.member_state.phase = MemberPhase.STAYING
        self.member_state.took(frozenset({("orders", 0)}))

    async def heartbeats(self, count: int) -> TidelogError | None:
        """Sends one heartbeat a second; returns the error that the last one got."""
        error: TidelogError | None = None
        for _ in range(count):
            await asyncio.sleep(1)
            beat = self.member_state.beat(now_s=virtual_loop().time())
            assert beat is not None
            try:
                await self.at.heartbeat(beat.member_id, beat.generation)
                error = None
            except RebalanceInProgress as reported:
                error = reported
            self.member_state.answered(beat, error)
        return error


async def three_members(at: Coordinated) -> tuple[str, str, str]:
    """Of a generation with its assignment; the first leads it."""
    joined = [await each for each in [at.join(**ASKS) for _ in range(3)]]
    leader = str(joined[0].leader)
    second, third = [str(each.member_id) for each in joined if each.member_id != leader]
    for syncing in [at.sync(member, 1, {leader: b"1", second: b"2"}) for member in (leader, second, third)]:
        await syncing
    return leader, second, third


async def next_generation(at: Coordinated, generation: int, *members: str) -> Joined:
    """Returns the next generation of `members`, which join again as soon as an answer asks for it."""
    while True:
        await asyncio.sleep(0.2)
        try:
            await at.heartbeat(members[0], generation)
        except RebalanceInProgress:
            break
    first, *others = [at.join(member, **ASKS) for member in members]
    await asyncio.gather(*others)
    return await first


@pytest.mark.parametrize("stored_s", [1, 5, 9])
@pytest.mark.parametrize("is_reported", [False, True], ids=["hears no more", "hears of the generation"])
def test_a_member_whose_heartbeat_said_to_wait_keeps_its_partitions_for_its_rebalance_timeout(
    stored_s: int, is_reported: bool
) -> None:
    async def scenario(cluster: Cluster) -> None:
        at = await cluster.coordinator()
        leader, cut, third = await three_members(at)
        owner = Owner(at, cut)
        owner.member_state.join_request(["orders"], now_s=virtual_loop().time())
        again = [at.join(member, **ASKS) for member in (leader, cut)]
        await asyncio.sleep(0.01)
        at.link.pause = asyncio.Event()
        again.append(at.join(third, **ASKS))
        reported = await owner.heartbeats(stored_s)
        assert reported is not None
        assert reported.details.get("waits")
        at.link.pause.set()
        opened = await again[0]
        assert opened.generation == 2
        if is_reported:
            owner.member_state.joined(await again[1])
        # from here on it is cut off: it never asks for its assignment
        waiting = at.sync(third, 2)
        await at.sync(leader, 2, {leader: b"1", cut: b"2"})
        await waiting
        after = await next_generation(at, 2, leader, third)
        assert cut not in [member.member_id for member in after.members]
        assert virtual_loop().time() >= owner.member_state.holds_until_s, "two would own it"
        assert virtual_loop().time() < owner.member_state.holds_until_s + 4, "no member waits longer for it"

    with_cluster(scenario)


def test_a_member_that_is_lost_since_its_requests_for_the_assignment_never_came_had_given_up_before() -> None:
    async def scenario(cluster: Cluster) -> None:
        at = await cluster.coordinator()
        leader, cut, third = await three_members(at)
        owner = Owner(at, cut)
        owner.member_state.join_request(["orders"], now_s=virtual_loop().time())
        again = [await each for each in [at.join(member, **ASKS) for member in (leader, cut, third)]]
        owner.member_state.joined(again[1])
        await at.sync(leader, 2, {leader: b"1", cut: b"2"})
        await at.sync(third, 2)
        assert await owner.heartbeats(REBALANCE_S - 1) is None
        after = await next_generation(at, 2, leader, third)
        assert cut not in [member.member_id for member in after.members]
        assert virtual_loop().time() >= owner.member_state.holds_until_s, "two would own it"

    with_cluster(scenario)


def test_a_rebalance_that_begins_with_a_write_waits_for_members_whose_heartbeats_succeeded() -> None:
    async def scenario(cluster: Cluster) -> None:
        at = await cluster.coordinator()
        dynamic, static = [await each for each in [at.join(**ASKS), at.join(instance="i", **ASKS)]]
        assigned = {str(each.member_id): b"1" for each in (dynamic, static)}
        for syncing in [at.sync(member, 1, assigned) for member in assigned]:
            await syncing
        owner = Owner(at, str(dynamic.member_id))
        at.link.pause = asyncio.Event()
        back = at.join(instance="i", **{**ASKS, "protocols": offers("payments", names=("cooperative-sticky",))})
        assert await owner.heartbeats(8) is None
        at.link.pause.set()
        opened = await back
        assert opened.generation == 2
        assert owner.member_state.member_id not in [member.member_id for member in opened.members]
        assert virtual_loop().time() >= owner.member_state.holds_until_s, "two would own it"

    with_cluster(scenario)
