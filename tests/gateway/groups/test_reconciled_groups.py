"""Groups of KIP-848 at their coordinator: what is stored, who falls silent, and what the next coordinator knows."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from gateway.groups.coordinator_lease import PROOF_S
from metadata.errors import (
    GroupSubscribed,
    InconsistentProtocol,
    NoCoordinator,
    NotCoordinator,
    OutcomeUnknown,
    StaleMember,
    StaleMemberEpoch,
    TooLarge,
    Unavailable,
    UnknownGroup,
    UnknownMember,
)
from metadata.groups.model import NO_INSTANCE, GroupPhase, MemberId
from metadata.groups.reconciliation.group import ReconciledGroup
from metadata.groups.reconciliation.model import (
    JOINING,
    LEAVING,
    NO_PARTITIONS,
    Beat,
    GroupTopic,
    Heartbeat,
    MemberPrincipal,
    Partitions,
)
from metadata.groups.settings import GroupSettings
from metadata.model import Partition, TopicId, TopicPartition
from tests.kit.gateway.coordinated_groups import Cluster, Coordinated, outcome, with_cluster
from tests.simulation.virtual_loop import virtual_loop

ORDERS = GroupTopic(TopicId("0" * 31 + "1"), 4)
USERS = GroupTopic(TopicId("0" * 31 + "2"), 2)
SESSION_S, REBALANCE_S = 10.0, 5.0
SETTINGS = GroupSettings(
    group_consumer_session_timeout_ms=int(1000 * SESSION_S), group_consumer_heartbeat_interval_ms=1_000, commit_linger_ms=0
)


def partitions(*numbers: int) -> Partitions:
    return frozenset(TopicPartition(ORDERS.topic_id, Partition(number)) for number in numbers)


async def coordinator(cluster: Cluster, settings: GroupSettings = SETTINGS) -> Coordinated:
    started = await cluster.coordinator(settings)
    started.topics = {"orders": ORDERS}
    return started


async def beat(at: Coordinated, member: str, epoch: int, owned: Partitions | None = None, **more: Any) -> Beat:
    return await at.groups.beat("g", Heartbeat(member_id=MemberId(member), epoch=epoch, owned=owned, **more))


async def join(at: Coordinated, member: str, *topics: str, **more: Any) -> Beat:
    terms = {"topics": frozenset(topics or ("orders",)), "rebalance_timeout_ms": int(1000 * REBALANCE_S)}
    return await beat(at, member, JOINING, NO_PARTITIONS, **{**terms, **more})


async def group_at(at: Coordinated) -> ReconciledGroup:
    group = await at.groups.describe("g")
    assert isinstance(group, ReconciledGroup)
    return group


def test_each_change_is_stored_before_it_is_answered_and_a_heartbeat_at_rest_costs_no_request() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await coordinator(cluster)
        answer = await join(b1, "a")
        assert (answer.epoch, answer.assignment, answer.interval_ms) == (1, partitions(0, 1, 2, 3), 1_000)
        assert await cluster.keys() == ["groups/g"]
        before = b1.link.requests
        for _ in range(20):
            await asyncio.sleep(1)
            assert (await beat(b1, "a", 1)).assignment is None
        assert b1.link.requests == before
        await beat(b1, "a", LEAVING)
        assert (await group_at(b1)).phase is GroupPhase.EMPTY
        await b1.groups.delete("g")
        assert await cluster.keys() == []

    with_cluster(scenario)


def test_offsets_of_a_topic_that_a_member_reads_by_a_pattern_are_not_deleted() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await coordinator(cluster)
        b1.topics = {"orders": ORDERS, "users": USERS}
        await join(b1, "a", topics=frozenset({"to-come"}), pattern="ord.*")
        for topic in ("orders", "to-come"):
            with pytest.raises(GroupSubscribed, match=topic):
                await b1.groups.delete_offsets("g", list(partitions(0)), topics=[topic])
        await b1.groups.delete_offsets("g", [USERS.last_partition], topics=["users"])
        await beat(b1, "a", 1, topics=frozenset({"users"}), pattern="")
        await b1.groups.delete_offsets("g", list(partitions(0)), topics=["orders"])
        await beat(b1, "a", LEAVING)
        await b1.groups.delete_offsets("g", [USERS.last_partition], topics=["users"])

    with_cluster(scenario)


def test_a_member_that_falls_silent_is_removed_after_its_session_and_the_others_are_given_its_partitions() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await coordinator(cluster)
        await join(b1, "a")
        await join(b1, "b")
        epoch = 2
        for _ in range(int(SESSION_S) + 1):
            assert {"b"} <= (await group_at(b1)).members.keys()
            epoch = (await beat(b1, "b", epoch)).epoch
            await asyncio.sleep(1)
        assert list((await group_at(b1)).members) == ["b"]
        assert (await beat(b1, "b", epoch)).epoch == 3
        assert (await group_at(b1)).consumer.members[MemberId("b")].assigned == partitions(0, 1, 2, 3)
        with pytest.raises(UnknownMember):
            await beat(b1, "a", 1)

    with_cluster(scenario)


def test_a_member_that_gives_nothing_up_in_its_rebalance_timeout_is_removed() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await coordinator(cluster)
        await join(b1, "a")
        await join(b1, "b")
        began_s = virtual_loop().time()
        while "a" in (await group_at(b1)).members:
            with suppress(UnknownMember):  # between the look and the call
                await beat(b1, "a", 1, partitions(0, 1, 2, 3))
            await asyncio.sleep(0.5)
        assert REBALANCE_S <= virtual_loop().time() - began_s < REBALANCE_S + 1
        assert (await beat(b1, "b", 2)).assignment == partitions(0, 1, 2, 3)

    with_cluster(scenario)


def test_the_next_coordinator_knows_epochs_assignments_and_who_has_to_give_what_up() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await coordinator(cluster), await coordinator(cluster)
        await join(b1, "a")
        await join(b1, "b", rack="zone", client_id="app")
        kept = (await beat(b1, "a", 1)).assignment
        before = await group_at(b1)
        b1.hand_over()
        with pytest.raises(NotCoordinator):
            await beat(b1, "a", 1)
        after = await group_at(b2)
        assert after.consumer == before.consumer
        assert after.members == before.members
        assert (await beat(b2, "b", 2)).assignment is None, "a has not given up yet"
        assert (await beat(b2, "a", 1, kept)).epoch == 2
        assert kept is not None
        assert (await beat(b2, "b", 2)).assignment == partitions(0, 1, 2, 3) - kept

    with_cluster(scenario)


def test_the_next_coordinator_takes_nothing_away_of_a_topic_that_it_has_not_heard_of_yet() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await coordinator(cluster), await coordinator(cluster)
        assert (await join(b1, "a")).assignment == partitions(0, 1, 2, 3)
        b2.topics = {}
        b2.heard.clear()
        with pytest.raises(Unavailable):
            await beat(b2, "a", 1)
        assert (await beat(b1, "a", 1)).epoch == 1, "nothing was taken from the former coordinator either"

        def hears() -> None:
            b2.topics = {"orders": ORDERS}
            b2.heard.set()

        virtual_loop().call_later(0.5, hears)
        assert await beat(b2, "a", 1) == Beat(MemberId("a"), 1, None, 1_000), "it keeps what it has, in its epoch"

    with_cluster(scenario)


class Readers:
    """The rights that a broker has heard of."""

    def __init__(self, **names: set[str]) -> None:
        self.version = 0
        self.names = names

    def readable(self, member: MemberPrincipal | None, names: frozenset[str]) -> frozenset[str] | None:
        return names & self.names[member.principal] if member is not None and member.principal in self.names else None


ANNA, BERT = MemberPrincipal("anna"), MemberPrincipal("bert", "key-of-bert")


def test_a_pattern_follows_the_rights_of_each_member_also_at_the_next_coordinator() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await coordinator(cluster)
        b1.rights = readers = Readers(anna=set(), bert={"orders"})
        assert (await join(b1, "a", topics=None, pattern=".*", principal=ANNA)).assignment == NO_PARTITIONS
        await join(b1, "b", topics=None, pattern=".*", principal=BERT)
        assert (await group_at(b1)).consumer.members[MemberId("b")].target == partitions(0, 1, 2, 3)
        readers.names["anna"] = {"orders"}
        epoch = (await beat(b1, "a", 1, principal=ANNA)).epoch
        assert (await group_at(b1)).consumer.epoch == 2, "this broker has not heard of the right yet"
        readers.version += 1
        await beat(b1, "a", epoch, principal=ANNA)
        members = (await group_at(b1)).consumer.members
        assert len(members[MemberId("a")].target) == 2
        b1.hand_over()
        b2 = await coordinator(cluster)
        b2.rights = Readers(anna={"orders"})
        assert (await group_at(b2)).consumer.members == members
        await beat(b2, "a", 3, principal=ANNA)
        assert {at: each.target for at, each in (await group_at(b2)).consumer.members.items()} == {
            at: each.target for at, each in members.items()
        }, "what is not known yet of the other takes nothing away"
        b2.rights = Readers(anna={"orders"}, bert=set())
        b2.rights.version = 1
        await beat(b2, "a", 3, principal=ANNA)
        assert (await group_at(b2)).consumer.members[MemberId("a")].target == partitions(0, 1, 2, 3)

    with_cluster(scenario)


def test_a_former_coordinator_can_store_nothing_any_more() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await coordinator(cluster), await coordinator(cluster)
        await join(b1, "a")
        await join(b2, "b")
        with pytest.raises(NotCoordinator):
            await join(b1, "c")
        assert list((await group_at(b2)).members) == ["a", "b"]

    with_cluster(scenario)


def test_after_a_handover_a_silent_member_has_a_session_from_the_time_when_its_coordinator_is_alone() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await coordinator(cluster), await coordinator(cluster)
        await join(b1, "a")
        await asyncio.sleep(SESSION_S - 1)
        b1.hand_over()
        await group_at(b2)
        await asyncio.sleep(SESSION_S + PROOF_S - 1)
        assert (await beat(b2, "a", 1)).epoch == 1
        await asyncio.sleep(SESSION_S + PROOF_S + 1)
        assert not (await group_at(b2)).members

    with_cluster(scenario)


def test_a_join_that_cannot_be_stored_has_not_happened() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await coordinator(cluster)
        await join(b1, "a")
        small = await coordinator(cluster, GroupSettings(group_bytes_max=400, group_metadata_bytes_max=100))
        b1.hand_over()
        with pytest.raises(TooLarge):
            await join(small, "b" * 200)
        assert list((await group_at(small)).members) == ["a"]

    with_cluster(scenario)


def test_a_group_changes_its_protocol_only_without_members() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await coordinator(cluster)
        [member] = await b1.stable(1)
        with pytest.raises(UnknownGroup):
            await join(b1, "a")
        await b1.leave(member)
        assert (await join(b1, "a")).epoch == 3, "above every earlier generation"
        with pytest.raises(InconsistentProtocol):
            await b1.join()
        with pytest.raises(UnknownMember):
            await b1.heartbeat("a", 3)
        await b1.leave("a")
        assert (await b1.join()).generation == 5

    with_cluster(scenario)


def test_members_commit_in_their_epoch_and_read_what_they_committed() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await coordinator(cluster)
        await join(b1, "a")
        await b1.commit(7, "a", 1)
        assert await cluster.committed() == 7
        with pytest.raises(StaleMemberEpoch):
            await b1.commit(8, "a", 2)
        with pytest.raises(UnknownMember):
            await b1.commit(8)
        assert (await b1.groups.offsets("g", MemberId("a"), 1)).committed
        with pytest.raises(StaleMemberEpoch):
            await b1.groups.offsets("g", MemberId("a"), 2)

    with_cluster(scenario)


# ── trouble ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Member:
    """A member as a client implements it, which reads what it owns as long as its session lasts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = JOINING
        self.owned: Partitions = NO_PARTITIONS
        self.reported: Partitions = NO_PARTITIONS
        self.says_all = True
        self.heard_s = 0.0

    def owns(self) -> Partitions:
        """What it reads. It stops by itself once its session must have ended, as clients do on a time-out of their group."""
        return self.owned if virtual_loop().time() - self.heard_s < SESSION_S else NO_PARTITIONS

    async def live(self, brokers: list[Coordinated], chance: random.Random, *, calm_s: float, until_s: float) -> None:
        while virtual_loop().time() < until_s:
            await asyncio.sleep(chance.uniform(0.05, 0.6))
            is_calm = virtual_loop().time() > calm_s
            if not is_calm and chance.random() < 0.02:
                await asyncio.sleep(chance.uniform(1, 1.5 * SESSION_S))  # it stands still
            self.owned &= self.reported
            if not self.owns():
                self.owned = NO_PARTITIONS
            sent_s = virtual_loop().time()
            more: dict[str, Any] = {}
            if self.says_all or self.epoch == JOINING:
                more = {"topics": frozenset({"orders"}), "rebalance_timeout_ms": int(1000 * REBALANCE_S)}
            owned = NO_PARTITIONS if self.epoch == JOINING else self.owned
            try:
                answer = await beat(chance.choice(brokers), self.name, self.epoch, owned, **more)
            except StaleMember:
                self.epoch, self.owned, self.reported, self.says_all = JOINING, NO_PARTITIONS, NO_PARTITIONS, True
                continue
            except (NotCoordinator, Unavailable, OutcomeUnknown):
                self.says_all = True
                continue
            if not is_calm and chance.random() < 0.05:
                self.says_all = True  # the answer is lost
                continue
            self.says_all, self.epoch, self.heard_s = False, answer.epoch, sent_s
            if answer.assignment is not None:
                self.reported = answer.assignment
            if self.owned <= self.reported:
                self.owned = self.reported


@pytest.mark.parametrize("seed", range(4))
def test_no_partition_is_read_twice_while_coordinators_change_and_all_are_read_in_the_end(seed: int) -> None:
    chance = random.Random(f"{seed}/reconciled")

    async def scenario(cluster: Cluster) -> None:
        brokers = [await coordinator(cluster), await coordinator(cluster)]
        brokers[1].is_mine = False
        members = [Member(name) for name in ("a", "b", "c")]
        calm_s, end_s = 40.0, 40.0 + 2 * (SESSION_S + REBALANCE_S + PROOF_S)

        async def trouble() -> None:
            while virtual_loop().time() < calm_s:
                await asyncio.sleep(chance.uniform(1, 8))
                here = next(each for each in brokers if each.is_mine)
                if chance.random() < 0.5:
                    here.hand_over()
                    brokers[1 - brokers.index(here)].is_mine = True
                elif chance.random() < 0.5:
                    here.link.delay = 1  # a write whose outcome is unknown, and that lands later
                    await asyncio.sleep(chance.uniform(0.1, 3))
                    here.link.delay = 0
                    await here.link.land()
                else:
                    topic = here.topics["orders"]
                    for each in brokers:
                        each.topics = {"orders": topic._replace(partition_count=topic.partition_count + 1)}

        async def judge() -> None:
            while virtual_loop().time() < end_s:
                await asyncio.sleep(0.05)
                owned = [at for member in members for at in member.owns()]
                assert len(owned) == len(set(owned)), f"read twice at {virtual_loop().time():g} s"

        async with asyncio.TaskGroup() as tasks:
            for member in members:
                tasks.create_task(member.live(brokers, random.Random(f"{seed}/{member.name}"), calm_s=calm_s, until_s=end_s))
            tasks.create_task(trouble())
            tasks.create_task(judge())
        [here] = [each for each in brokers if each.is_mine]
        there = frozenset(TopicPartition(ORDERS.topic_id, Partition(at)) for at in range(here.topics["orders"].partition_count))
        assert frozenset().union(*(member.owns() for member in members)) == there

    with_cluster(scenario, shuffled=seed)


def test_offsets_and_departures_are_refused_only_while_it_is_proven_that_the_group_is_coordinated_here() -> None:
    """A member that joined at another coordinator is unknown here."""

    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await coordinator(cluster), await coordinator(cluster)
        await join(b1, "m1")
        beat = await join(b2, "m2")
        b1.unproven = "etcd is silent"
        assert await outcome(b1.groups.offsets("g", MemberId("m2"), beat.epoch)) is NoCoordinator
        (error,) = await b1.groups.leave("g", [(MemberId("m2"), NO_INSTANCE)])
        assert isinstance(error, NoCoordinator)
        assert await outcome(b2.groups.offsets("g", MemberId("m2"), beat.epoch)) is not NoCoordinator

    with_cluster(scenario)
