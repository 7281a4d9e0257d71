"""A coordinator that can't make sure that it is one answers no member, and the next one waits: so no partition has two owners."""

from __future__ import annotations

import asyncio

from gateway.groups.coordinator_lease import PROOF_S
from metadata.errors import NoCoordinator, RebalanceInProgress, StaleGeneration, UnknownMember
from metadata.groups.model import GroupPhase, MemberId
from tests.kit.gateway.coordinated_groups import Cluster, outcome, with_cluster
from tests.kit.metadata.played_group import REBALANCE_MS, SESSION_MS


def test_members_are_answered_only_while_it_is_proven_that_their_group_is_coordinated_here() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, second = await b1.stable()
        b1.unproven = "etcd is silent"
        assert await outcome(b1.heartbeat(first, 1)) is NoCoordinator
        assert await outcome(b1.sync(first, 1)) is NoCoordinator
        assert await outcome(b1.join(second)) is NoCoordinator
        b1.unproven = None
        await b1.heartbeat(first, 1)

    with_cluster(scenario)


def test_a_heartbeat_is_answered_at_once_only_by_a_proven_coordinator_that_has_loaded_the_group() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, _ = await b1.stable()
        assert b1.heartbeat_at_once(first, 1) is True
        assert b1.heartbeat_at_once("unknown", 1) is UnknownMember
        assert b1.heartbeat_at_once(first, 9) is StaleGeneration
        b1.unproven = "etcd is silent"
        assert b1.heartbeat_at_once(first, 1) is b1.heartbeat_at_once("unknown", 1) is False
        b1.unproven = None
        assert b1.heartbeat_at_once(first, 1) is True
        b1.session += 1
        assert b1.heartbeat_at_once(first, 1) is False  # another broker may have had the group meanwhile
        await b1.heartbeat(first, 1)
        assert b1.heartbeat_at_once(first, 1) is True
        b1.hand_over()
        assert b1.heartbeat_at_once(first, 1) is False

    with_cluster(scenario)


def test_a_heartbeat_that_is_answered_at_once_keeps_its_member_in_the_group() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, second = await b1.stable()
        for _ in range(4):
            await asyncio.sleep(SESSION_MS / 2000)
            assert b1.heartbeat_at_once(first, 1) in (True, RebalanceInProgress)
        assert first in (await b1.groups.describe("g")).members
        assert second not in (await b1.groups.describe("g")).members

    with_cluster(scenario)


def test_a_member_is_refused_only_while_it_is_proven_that_its_group_is_coordinated_here() -> None:
    """Another coordinator may know the member, or a later generation of it."""

    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, _ = await b1.stable()
        unknown = MemberId("unknown")
        for reason, errors in (("etcd is silent", [NoCoordinator] * 4), (None, [StaleGeneration, UnknownMember] * 2)):
            b1.unproven = reason
            answers = [b1.sync(first, 9), b1.sync(unknown, 1), b1.commit(1, first, 9), b1.commit(1, unknown, 1)]
            assert [await outcome(answer) for answer in answers] == errors

    with_cluster(scenario)


def test_a_member_whose_request_could_not_be_answered_stays_in_the_group() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, second = await b1.stable()
        await asyncio.sleep(SESSION_MS / 1000 - 1)
        b1.unproven = "etcd is silent"
        await asyncio.sleep(PROOF_S + 0.5)
        group = await b1.groups.describe("g")
        assert (group.phase, len(group.members)) == (GroupPhase.STABLE, 2), "no step is stored without a proof"
        b1.unproven = None
        b1.groups.proven(PROOF_S + 0.5)
        await asyncio.sleep(1)
        await b1.heartbeat(first, 1)
        await b1.heartbeat(second, 1)

    with_cluster(scenario)


def test_a_decision_from_before_the_proof_came_is_made_again() -> None:
    """Its members were silent because they were refused: when the proof comes, their sessions restart."""

    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, second = await b1.stable()
        may_verify = asyncio.Event()
        verify = b1.groups._groups["g"]._verify

        async def verify_later() -> None:
            await may_verify.wait()
            await verify()

        b1.groups._groups["g"]._verify = verify_later
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        b1.groups.proven(PROOF_S + 1)
        may_verify.set()
        await asyncio.sleep(0.1)
        assert len((await b1.groups.describe("g")).members) == 2
        await b1.heartbeat(first, 1)
        await b1.heartbeat(second, 1)

    with_cluster(scenario)


def test_the_next_coordinator_waits_for_proofs_of_the_former_one_before_it_loses_a_silent_member() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        first, second = await b1.stable()
        await b2.heartbeat(first, 1)
        taken_over_s = asyncio.get_running_loop().time()
        while len((await b2.groups.describe("g")).members) == 2:
            await asyncio.sleep(0.05)
            if (await b2.groups.describe("g")).phase is GroupPhase.STABLE:
                await b2.heartbeat(first, 1)
        lost_s = asyncio.get_running_loop().time() - taken_over_s
        assert 0 <= lost_s - (SESSION_MS / 1000 + PROOF_S) < 0.2
        assert await outcome(b2.heartbeat(second, 1)) in (UnknownMember, StaleGeneration)

    with_cluster(scenario)


def test_the_next_coordinator_holds_its_barrier_open_so_much_longer_for_members_that_it_has_not_heard_of() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        short_ms = SESSION_MS // 2
        assert short_ms < REBALANCE_MS
        alone = await b1.join(rebalance_ms=short_ms)
        await b1.sync(alone.member_id, 1, {alone.member_id: b"all"})
        taken_over_s = asyncio.get_running_loop().time()
        joined = await b2.join(rebalance_ms=short_ms)
        assert joined.generation == 2
        waited_s = asyncio.get_running_loop().time() - taken_over_s
        assert 0 <= waited_s - (short_ms / 1000 + PROOF_S) < 0.2

    with_cluster(scenario)


def test_groups_with_members_are_reloaded_after_a_long_time_without_a_proof() -> None:
    """Another may have come and gone, and have given away what was held here."""

    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        (first,) = await b1.stable(1)
        await asyncio.sleep(60)
        held = b1.groups._groups["g"]
        (first,) = [(await b1.join()).member_id]
        b1.groups.proven(SESSION_MS / 1000 - 1)
        assert b1.groups._groups["g"] is held, "no session can have ended in that time"
        b1.groups.proven(SESSION_MS / 1000 + 1)
        assert not b1.groups.is_loaded("g")
        assert await outcome(b1.heartbeat(first, 2)) in (None, StaleGeneration)
        assert b1.groups._groups["g"] is not held

    with_cluster(scenario)


def test_a_group_that_was_taken_over_a_moment_ago_is_kept() -> None:
    """Its record was written then: no other coordinator has had it since."""

    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        await b1.stable(1)
        b1.groups.proven(float("inf"))
        assert b1.groups.is_loaded("g")

    with_cluster(scenario)
