"""Consumer groups at their coordinator: what is stored when, who is fenced, and what is left when a call or a broker goes away."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.groups.coordinator_lease import PROOF_S
from metadata.errors import (
    Corrupt,
    GroupNotEmpty,
    InvalidArgument,
    InvalidGroupName,
    NotCoordinator,
    OutcomeUnknown,
    RebalanceInProgress,
    StaleGeneration,
    Stopping,
    Throttled,
    Unavailable,
    UnknownGroup,
    UnknownMember,
)
from metadata.groups.model import NO_GENERATION, NO_INSTANCE, NO_MEMBER, Generation, GroupPhase, Joined, MemberId
from metadata.groups.offsets import CommittedOffset
from metadata.groups.settings import GroupSettings
from metadata.model import Partition, TopicPartition
from metadata.store.interface import Delete, Put
from tests.kit.gateway.coordinated_groups import LAYOUT, P0, P1, SETTINGS, Cluster, Coordinated, outcome, with_cluster
from tests.kit.metadata.faulty_store import unavailable
from tests.kit.metadata.played_group import SESSION_MS
from tests.simulation.virtual_loop import virtual_loop

# ── the life of a group ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_members_join_are_assigned_commit_and_leave() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, second = await b1.stable()
        assert await cluster.keys() == ["groups/g"]
        await b1.commit(7, first, 1)
        assert await cluster.committed() == 7
        assert (await b1.groups.offsets("g")).committed[P0].offset == 7
        await b1.leave(second)
        with pytest.raises(RebalanceInProgress):
            await b1.heartbeat(first, 1)
        assert (await b1.join(first)).generation == 2
        await b1.leave(first)
        assert (await b1.groups.describe("g")).phase is GroupPhase.EMPTY

    with_cluster(scenario)


def test_a_generation_costs_two_writes_of_the_record_and_a_heartbeat_no_request() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, second = await b1.stable()
        assert len(b1.link.transactions) == 2
        before = b1.link.requests
        for _ in range(100):
            await asyncio.sleep(3)
            await b1.heartbeat(first, 1)
            await b1.heartbeat(second, 1)
        assert b1.link.requests == before

    with_cluster(scenario)


def test_a_member_that_falls_silent_is_lost_after_its_session_timeout_and_one_that_is_heard_of_is_not() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, second = await b1.stable()
        for _ in range(int(SESSION_MS / 1000) - 1):
            await asyncio.sleep(1)
            await b1.heartbeat(first, 1)
        assert len((await b1.groups.describe("g")).members) == 2
        await asyncio.sleep(1.1)
        assert list((await b1.groups.describe("g")).members) == [first]
        with pytest.raises(UnknownMember):
            await b1.heartbeat(second, 1)

    with_cluster(scenario)


def test_a_commit_is_a_sign_of_life_and_a_heartbeat_of_another_generation_is_none() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, second = await b1.stable()
        for at in range(12):
            await asyncio.sleep(1)
            await b1.commit(at, first, 1)
            assert await outcome(b1.heartbeat(second, 0)) in (StaleGeneration, UnknownMember)
            if first in (group := await b1.groups.describe("g")).members and second not in group.members:
                break
        assert list((await b1.groups.describe("g")).members) == [first]

    with_cluster(scenario)


def test_members_keep_their_whole_session_timeout_after_their_coordinator_was_suspended() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, _ = await b1.stable()
        loop = asyncio.get_running_loop()
        loop._now_s += 60  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        await b1.heartbeat(first, 1)
        assert len((await b1.groups.describe("g")).members) == 2
        await asyncio.sleep(SESSION_MS / 1000 + 0.1)
        assert len((await b1.groups.describe("g")).members) <= 1

    with_cluster(scenario)


@pytest.mark.slow
def test_thousands_of_groups_share_one_timer() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        names = [f"g{number}" for number in range(2_000)]
        joined = await asyncio.gather(*(b1.join(group=name) for name in names))
        synced = [b1.sync(each.member_id, 1, {each.member_id: b""}, group=name) for each, name in zip(joined, names, strict=True)]
        await asyncio.gather(*synced)
        assert len(b1.groups) == 2_000
        assert len(asyncio.all_tasks()) < 10
        assert len(b1.link.transactions) < 60, "records of many groups go together"
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        assert (await b1.groups.describe("g77")).phase is GroupPhase.EMPTY
        await asyncio.sleep(2_000)
        assert len(b1.groups) == 0, "a group without requests is not kept"

    with_cluster(scenario)


# ── who coordinates ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_next_coordinator_goes_on_in_the_same_generation_and_the_former_one_writes_nothing_more() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        first, second = await b1.stable()
        await b1.commit(5, first, 1)
        await b2.heartbeat(first, 1)  # b1 does not know that it is not the coordinator any more
        await b2.commit(9, first, 1)
        assert await outcome(b1.commit(6, first, 1)) is NotCoordinator
        assert await cluster.committed() == 9
        assert (await b2.groups.describe("g")).generation == 1
        assert (await b2.sync(second, 1)).assignment == second.encode()

    with_cluster(scenario)


def test_a_record_of_a_former_coordinator_is_refused_too() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        first, second = await b1.stable()
        await b2.heartbeat(first, 1)
        waits = [b1.join(first, protocols=()), b1.join(second), b1.join(first)]
        await asyncio.sleep(0.1)
        assert await outcome(b1.leave(second)) is NotCoordinator
        assert [await outcome(each) for each in waits][2] is NotCoordinator
        assert len((await b2.groups.describe("g")).members) == 2

    with_cluster(scenario)


def test_waiting_calls_end_with_not_coordinator_when_their_group_is_handed_over() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        waits = [b1.join(), b1.join()]
        await asyncio.sleep(0.1)
        b1.hand_over()
        assert [await outcome(each) for each in waits] == [NotCoordinator, NotCoordinator]
        assert await outcome(b1.heartbeat("m", 1)) is NotCoordinator
        assert len(b1.groups) == 0

    with_cluster(scenario)


def test_a_handover_between_the_barrier_and_the_assignment_costs_no_generation() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        joined = [await each for each in [b1.join(), b1.join()]]
        leader = joined[0].leader
        follower = next(each.member_id for each in joined if each.member_id != leader)
        waiting = b1.sync(follower, 1)
        await asyncio.sleep(0.1)
        b1.hand_over()
        assert await outcome(waiting) is NotCoordinator
        again = b2.sync(follower, 1)
        await asyncio.sleep(0.1)
        await b2.sync(leader, 1, {follower: b"f"})
        assert (await again).assignment == b"f"

    with_cluster(scenario)


def test_a_member_that_left_in_a_rebalance_is_not_waited_for_by_the_next_coordinator() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        first, second, gone = await b1.stable(3)
        await b1.leave(gone)
        waiting = b1.join(first)
        await asyncio.sleep(0.1)
        b1.hand_over()
        assert await outcome(waiting) is NotCoordinator
        await asyncio.sleep(0.1)
        began_s = virtual_loop().time()
        joined = [await each for each in [b2.join(first), b2.join(second)]]
        assert {each.generation for each in joined} == {2}
        assert virtual_loop().time() - began_s < 0.1

    with_cluster(scenario)


def test_the_silence_of_a_member_is_handed_over_and_it_has_half_of_its_session_at_least() -> None:
    async def lost_after_s(cluster: Cluster, idle_s: float) -> float:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        first, silent = await b1.stable()
        for _ in range(int(idle_s)):
            await asyncio.sleep(1)
            await b1.heartbeat(first, 1)
        new = b1.join()
        await asyncio.sleep(0.01)
        b1.hand_over()
        assert await outcome(new) is NotCoordinator
        await asyncio.sleep(0.01)
        began_s = virtual_loop().time()
        joined = await b2.join(first)
        assert silent not in [member.member_id for member in joined.members]
        return virtual_loop().time() - began_s

    async def scenario(cluster: Cluster) -> None:
        assert await lost_after_s(cluster, 2) == pytest.approx(8, abs=0.3)
        await cluster.etcd.transact([], [Delete(LAYOUT.group("g"))])
        assert await lost_after_s(cluster, 9) == pytest.approx(5, abs=0.3)

    with_cluster(scenario)


def test_where_the_next_coordinator_is_faster_than_the_handover_it_waits_for_all_as_if_there_were_none() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        first, gone = await b1.stable()
        await b1.leave(gone)
        b1.link.pause = asyncio.Event()
        b1.hand_over()
        await b2.heartbeat(first, 1)
        b1.link.pause.set()
        await asyncio.sleep(0.1)
        await b2.heartbeat(first, 1)
        assert (await b2.groups.describe("g")).members.keys() == {first, gone}
        began_s = virtual_loop().time()
        assert (await b2.join(first)).generation == 2
        assert virtual_loop().time() - began_s == pytest.approx(SESSION_MS / 1000 + PROOF_S, abs=0.2)

    with_cluster(scenario)


def test_a_group_at_rest_and_one_whose_first_members_gather_are_handed_over_without_a_write() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        await b1.stable()
        new = b1.join(group="another")
        await asyncio.sleep(0.1)
        before = b1.link.requests
        b1.hand_over()
        assert await outcome(new) is NotCoordinator
        await asyncio.sleep(1)
        assert b1.link.requests == before

    with_cluster(scenario)


def test_a_group_that_another_loads_while_it_is_loaded_here_goes_to_one_of_them() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        first, _ = await b1.stable()
        b1.hand_over()
        b1.is_mine = True
        answers = await asyncio.gather(outcome(b1.commit(1, first, 1)), outcome(b2.commit(2, first, 1)))
        assert answers.count(NotCoordinator) <= 1
        assert {} in answers

    with_cluster(scenario)


def test_a_group_that_was_loaded_in_an_earlier_session_of_the_broker_is_reloaded() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        (first,) = await b1.stable(1)
        newcomer = b2.join()
        while not newcomer.done():  # until the first one's session ends there
            await asyncio.sleep(1)
            await b1.heartbeat(first, 1)
        assert newcomer.result().generation == 2
        b1.session = 3
        assert await outcome(b1.heartbeat(first, 1)) is UnknownMember
        assert (await b1.groups.describe("g")).generation == 2

    with_cluster(scenario)


def test_giving_a_group_up_twice_takes_nothing_from_the_one_that_was_loaded_after_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        newcomer = b1.join()
        await asyncio.sleep(0.1)
        [held] = b1.groups._groups.values()
        b1.hand_over()
        assert await outcome(newcomer) is NotCoordinator
        b1.is_mine = True
        again = b1.join()
        await asyncio.sleep(0.1)
        held.give_up("an earlier call ends only now")
        async with asyncio.timeout(10):
            assert (await again).generation == 1, "its barrier opens in time"

    with_cluster(scenario)


# ── commits ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("same_broker", [True, False])
def test_a_commit_that_lands_late_never_takes_an_offset_back(same_broker: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, _ = await b1.stable()
        b1.link.delay = 1
        assert await outcome(b1.commit(10, first, 1)) is OutcomeUnknown
        after = b1 if same_broker else await cluster.coordinator()
        await after.commit(20, first, 1)
        assert await b1.link.land() == [False]
        assert await cluster.committed() == 20

    with_cluster(scenario)


@pytest.mark.parametrize("same_broker", [True, False])
def test_a_commit_that_only_moves_forward_and_is_repeated_late_takes_nothing_back(same_broker: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, _ = await b1.stable()
        for offset in (3, 12):
            assert await b1.commit(offset, first, 1, only_forward=True) == {}
        after = b1 if same_broker else await cluster.coordinator()
        assert await after.commit(3, first, 1, only_forward=True) == {}
        assert await cluster.committed() == 12
        assert after.groups.known_offsets["g"].get(P0, CommittedOffset(offset=12, committed_at_ms=0)).offset == 12
        await after.commit(5, first, 1)
        assert await cluster.committed() == 5, "who names an offset may go back"
        await after.commit(6, first, 1, only_forward=True)
        assert await cluster.committed() == 6

    with_cluster(scenario)


def test_commits_that_only_move_forward_cost_one_reading_of_the_store() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, _ = await b1.stable()
        await b1.commit(1, first, 1, only_forward=True)
        before = b1.link.requests
        for offset in range(2, 12):
            await b1.commit(offset, first, 1, only_forward=True)
        assert b1.link.requests == before + 10
        await b1.commit(3, first, 1, only_forward=True)
        assert b1.link.requests == before + 10, "what goes back is not written"

    with_cluster(scenario)


@pytest.mark.parametrize("known_before", [True, False])
def test_a_commit_that_only_moves_forward_waits_for_those_under_way(known_before: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, _ = await b1.stable()
        if known_before:
            await b1.commit(1, first, 1, only_forward=True)
        b1.link.pause = asyncio.Event()
        earlier = [asyncio.ensure_future(b1.commit(offset, first, 1, only_forward=at > 0)) for at, offset in enumerate((20, 21))]
        await asyncio.sleep(0.1)
        late = asyncio.ensure_future(b1.commit(12, first, 1, only_forward=True))
        await asyncio.sleep(0.1)
        assert not late.done()
        b1.link.pause.set()
        assert [await each for each in (*earlier, late)] == [{}, {}, {}]
        assert await cluster.committed() == 21

    with_cluster(scenario)


def test_a_commit_that_only_moves_forward_after_one_of_unknown_outcome_compares_with_what_landed() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, _ = await b1.stable()
        await b1.commit(10, first, 1, only_forward=True)
        b1.link.delay = 1
        assert await outcome(b1.commit(20, first, 1, only_forward=True)) is OutcomeUnknown
        assert await b1.link.land() == [True]
        assert await b1.commit(12, first, 1, only_forward=True) == {}
        assert await cluster.committed() == 20
        b1.link.delay = 1
        assert await outcome(b1.commit(30, first, 1, only_forward=True)) is OutcomeUnknown
        assert await b1.commit(25, first, 1, only_forward=True) == {}
        assert await b1.link.land() == [False]
        assert await cluster.committed() == 25

    with_cluster(scenario)


def test_a_commit_that_only_moves_forward_is_not_bound_by_an_earlier_generation() -> None:
    """The earlier offset may lie behind the end of a restored log; then reading has started over."""

    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        (first,) = await b1.stable(1)
        await b1.commit(1_000, first, 1)
        generation = (await b1.join(first)).generation
        await b1.sync(first, generation, {first: b"all"})
        await b1.commit(5, first, generation, only_forward=True)
        assert await cluster.committed() == 5

    with_cluster(scenario)


def test_a_commit_that_only_moves_forward_is_refused_where_the_store_can_not_be_read() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, _ = await b1.stable()
        b1.link.down = unavailable()
        assert await outcome(b1.commit(5, first, 1, only_forward=True)) is Unavailable
        b1.link.down = None
        assert await b1.commit(5, first, 1, only_forward=True) == {}
        assert await cluster.committed() == 5

    with_cluster(scenario)


def test_commits_that_queue_behind_one_of_unknown_outcome_are_not_overtaken_by_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, _ = await b1.stable()
        b1.link.delay = 1
        lost = asyncio.ensure_future(outcome(b1.commit(10, first, 1)))
        queued = asyncio.ensure_future(outcome(b1.commit(20, first, 1)))
        await asyncio.sleep(0)
        lost.cancel()
        assert await queued == {}
        assert await cluster.committed() == 20
        await b1.commit(30, first, 1)
        assert await b1.link.land() == [False]
        assert await cluster.committed() == 30

    with_cluster(scenario)


def test_a_commit_of_unknown_outcome_disturbs_no_member_though_etcd_stays_away() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, second = await b1.stable()
        b1.link.delay = 1
        assert await outcome(b1.commit(10, first, 1)) is OutcomeUnknown
        b1.link.down = unavailable()
        for member in (first, second):
            await b1.heartbeat(member, 1)
        assert await outcome(b1.commit(20, first, 1)) is Unavailable
        assert await outcome(b1.groups.offsets("g")) is Unavailable
        b1.link.down = None
        assert (await b1.groups.offsets("g")).committed == {}
        assert await b1.link.land() == [False], "it would land after an answer that nothing is committed"
        joining = b1.join()
        await asyncio.sleep(0.01)
        b1.link.delay = 1
        assert await outcome(b1.commit(30, first, 1)) is OutcomeUnknown
        again = [b1.join(first), b1.join(second)]
        assert {(await each).generation for each in (joining, *again)} == {2}
        assert await b1.link.land() == [False]

    with_cluster(scenario)


def test_a_fetched_offset_stays_true_though_a_commit_of_the_former_coordinator_lands_late() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        first, _ = await b1.stable()
        await b1.commit(5, first, 1)
        b1.link.delay = 1
        await outcome(b1.commit(10, first, 1))
        assert (await b2.groups.offsets("g")).committed[P0].offset == 5
        assert await b1.link.land() == [False]
        assert (await b2.groups.offsets("g")).committed[P0].offset == 5

    with_cluster(scenario)


@pytest.mark.parametrize("hangs_up", [True, False])
def test_a_fetched_offset_stays_true_though_a_commit_is_under_way(hangs_up: bool) -> None:
    """A member that comes back in the same generation would commit from there, and so take back what lands later."""

    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, _ = await b1.stable()
        await b1.commit(5, first, 1)
        b1.link.pause = asyncio.Event()
        committing = asyncio.ensure_future(b1.commit(10, first, 1))
        await asyncio.sleep(0.1)
        if hangs_up:
            committing.cancel()
        fetching = asyncio.ensure_future(b1.groups.offsets("g"))
        await asyncio.sleep(0.1)
        b1.link.pause.set()
        found = (await fetching).committed[P0].offset
        await asyncio.sleep(1.0)
        assert await cluster.committed() == found
        await b1.heartbeat(first, 1)

    with_cluster(scenario)


def test_the_last_commit_of_a_member_counts_while_the_group_rebalances_and_not_after() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, second = await b1.stable()
        joins = [b1.join()]
        await asyncio.sleep(0.1)
        await b1.commit(8, first, 1)
        joins += [b1.join(first), b1.join(second)]
        assert {(await each).generation for each in joins} == {2}
        assert await outcome(b1.commit(9, first, 1)) is StaleGeneration
        assert await cluster.committed() == 8

    with_cluster(scenario)


def test_a_commit_that_meets_the_next_generation_on_its_way_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        (first,) = await b1.stable(1)
        b1.link.pause = asyncio.Event()
        joining = b1.join(first)  # the leader: the next generation, which is being stored
        await asyncio.sleep(0.1)
        late = asyncio.ensure_future(outcome(b1.commit(3, first, 1)))
        await asyncio.sleep(0.1)
        b1.link.pause.set()
        assert (await joining).generation == 2
        assert await late is StaleGeneration
        assert await cluster.committed() is None

    with_cluster(scenario)


def test_a_consumer_that_assigns_by_hand_commits_without_a_member_and_makes_the_group() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        await asyncio.gather(*(b1.commit(at, partition=P0) for at in range(5)))
        assert await cluster.committed() == 4
        assert (await b1.groups.describe("g")).phase is GroupPhase.EMPTY
        assert (await b1.groups.offsets("other")).committed == {}

    with_cluster(scenario)


def test_offsets_that_can_not_be_committed_are_named_and_the_others_are_committed() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        offsets = {P0: CommittedOffset(offset=-1, committed_at_ms=0), P1: CommittedOffset(offset=3, committed_at_ms=0)}
        refused = await b1.groups.commit("g", NO_MEMBER, NO_INSTANCE, NO_GENERATION, offsets)
        assert {partition: type(why) for partition, why in refused.items()} == {P0: InvalidArgument}
        assert (await cluster.committed(), await cluster.committed(partition=P1)) == (None, 3)

    with_cluster(scenario)


def test_many_offsets_are_several_transactions_and_what_fails_later_is_named() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        await b1.commit(1)
        many = [TopicPartition(P0.topic_id, Partition(number)) for number in range(300)]
        offsets = {at: CommittedOffset(offset=7, committed_at_ms=0) for at in many}
        assert await b1.groups.commit("g", NO_MEMBER, NO_INSTANCE, NO_GENERATION, offsets) == {}
        assert len((await b1.groups.offsets("g")).committed) == 300

        async def second() -> None:
            raise unavailable()

        async def first() -> None:
            b1.link.before_transaction = second

        b1.link.before_transaction = first
        refused = await b1.groups.commit("g", NO_MEMBER, NO_INSTANCE, NO_GENERATION, offsets)
        assert list(refused) == many[128:], "the first part was written"
        assert set(map(type, refused.values())) == {Unavailable}

    with_cluster(scenario)


# ── etcd away ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_while_etcd_is_away_members_stay_and_the_barrier_opens_when_it_is_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        waits = [b1.join(), b1.join()]
        await asyncio.sleep(0.1)
        b1.link.down = unavailable()
        await asyncio.sleep(5)
        assert not any(each.done() for each in waits)
        b1.link.down = None
        assert {(await each).generation for each in waits} == {1}

    with_cluster(scenario)


def test_while_etcd_is_away_heartbeats_are_answered_and_what_must_be_stored_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        (first,) = await b1.stable(1)
        b1.link.down = unavailable()
        await b1.heartbeat(first, 1)
        assert await outcome(b1.commit(1, first, 1)) is Unavailable
        assert await outcome(b1.join(first)) is Unavailable
        assert await outcome(b1.leave(first)) is Unavailable
        b1.link.down = None
        await b1.heartbeat(first, 1)
        await b1.commit(1, first, 1)

    with_cluster(scenario)


def test_a_group_can_not_be_loaded_while_etcd_is_away_and_can_be_later() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        b1.link.down = unavailable()
        assert await outcome(b1.join()) is Unavailable
        b1.link.down = None
        assert (await b1.join()).generation == 1

    with_cluster(scenario)


@pytest.mark.parametrize("lost", ["lose_answers", "lose_requests", "delay"])
@pytest.mark.parametrize("step", ["barrier", "assignment", "adoption", "leave"])
def test_whatever_is_lost_in_whichever_step_the_members_come_through_by_asking_again(step: str, lost: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        if step == "barrier":
            joining = b1.join()
            await asyncio.sleep(0.1)
            setattr(b1.link, lost, 1)
            assert await outcome(joining) is NotCoordinator
            await b1.link.land()
        elif step == "assignment":
            joined = await b1.join()
            setattr(b1.link, lost, 1)
            assert await outcome(b1.sync(joined.member_id, 1, {joined.member_id: b"x"})) is NotCoordinator
            await b1.link.land()
            assert (await b1.sync(joined.member_id, 1, {joined.member_id: b"x"})).assignment == b"x"
            await b1.leave(joined.member_id)
        else:
            (first,) = await b1.stable(1)
            if step == "adoption":
                b1.hand_over()
                b1.is_mine = True
            setattr(b1.link, lost, 1)
            assert await outcome(b1.leave(first)) is NotCoordinator
            await b1.link.land()
            assert await outcome(b1.leave(first)) in (None, UnknownMember)
        generations = [(await b1.groups.describe("g")).generation] if await cluster.keys() else [Generation(0)]
        joined = await b1.join()
        assert joined.generation > generations[0]
        assert (await b1.sync(joined.member_id, joined.generation, {joined.member_id: b"y"})).assignment == b"y"

    with_cluster(scenario)


# ── calls that go away, and the broker that stops ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("steps", range(1, 17))
def test_a_call_that_is_cancelled_at_any_moment_leaves_a_group_that_goes_on(steps: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        (first,) = await b1.stable(1)
        calls = [
            b1.join(first),
            b1.sync(first, 2, {first: b"x"}),
            asyncio.ensure_future(outcome(b1.commit(3, first, 1))),
            asyncio.ensure_future(outcome(b1.leave("unknown"))),
        ]
        for _ in range(steps):
            await asyncio.sleep(0.0007 if steps > 8 else 0)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await asyncio.sleep(1)
        joined = await b1.join(first)
        assert joined.generation in (2, 3)
        assert (await b1.sync(first, joined.generation, {first: b"y"})).assignment in (b"x", b"y")
        await b1.commit(9, first, joined.generation)
        assert await cluster.committed() == 9

    with_cluster(scenario, shuffled=steps)


def test_a_commit_cancelled_while_the_group_record_is_rewritten_disturbs_no_member() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        first, second = await b1.stable()
        b1.link.delay = 1
        assert await outcome(b1.commit(10, first, 1)) is OutcomeUnknown
        joining = b1.join()
        await asyncio.sleep(0.1)
        b1.link.pause = asyncio.Event()
        hanging_up = asyncio.ensure_future(b1.commit(20, first, 1))
        await asyncio.sleep(0.1)
        hanging_up.cancel()
        await asyncio.sleep(0.1)
        b1.link.pause.set()
        assert await b1.commit(30, second, 1) == {}
        assert not joining.done(), "who waits for the others still waits"
        joining.cancel()

    with_cluster(scenario)


@pytest.mark.parametrize("deletes", [False, True])
def test_known_offsets_are_read_again_after_a_call_that_hung_up(deletes: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        await b1.commit(7)
        b1.link.pause = asyncio.Event()
        hanging_up = asyncio.ensure_future(b1.groups.delete_offsets("g", [P0]) if deletes else b1.commit(9))
        await asyncio.sleep(0.1)
        hanging_up.cancel()
        b1.link.pause.set()
        await asyncio.sleep(0.1)
        assert (await b1.groups.offsets("g")).committed.keys() == (set() if deletes else {P0}), "it was done all the same"
        assert not b1.groups.known_offsets.is_whole("g"), "else metrics show the earlier offset until the next commit"

    with_cluster(scenario)


def test_a_commit_by_hand_that_hangs_up_while_it_makes_its_group_refuses_no_other() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        b1.link.pause = asyncio.Event()
        hanging_up = asyncio.ensure_future(b1.commit(20))
        await asyncio.sleep(0.1)
        hanging_up.cancel()
        await asyncio.sleep(0.1)
        b1.link.pause.set()
        assert await b1.commit(30) == {}

    with_cluster(scenario)


def test_a_newcomer_that_hangs_up_is_gone_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        (first,) = await b1.stable(1)
        newcomer = b1.join()
        await asyncio.sleep(0.1)
        assert len((await b1.groups.describe("g")).members) == 2
        newcomer.cancel()
        await asyncio.sleep(0.1)
        assert list((await b1.groups.describe("g")).members) == [first]

    with_cluster(scenario)


def test_a_newcomer_that_hangs_up_while_it_is_stored_that_it_is_a_member_is_gone_at_once_as_well() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        (first,) = await b1.stable(1)
        newcomer = b1.join()
        await asyncio.sleep(0.1)
        b1.link.pause = asyncio.Event()
        again = b1.join(first)
        await asyncio.sleep(0.1)
        newcomer.cancel()
        await asyncio.sleep(0.1)
        b1.link.pause.set()
        assert (await again).generation == 2
        await asyncio.sleep(0.1)
        assert list((await b1.groups.describe("g")).members) == [first]
        assert (await b1.join(first)).generation == 3, "no member waits for the session of one that never received its id"

    with_cluster(scenario)


def test_a_member_that_joins_does_not_wait_for_all_that_hung_up_before() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator(GroupSettings(group_initial_rebalance_delay_ms=0, commit_linger_ms=50))
        for _ in range(100):
            flapping = b1.join()
            await asyncio.sleep(0.01)
            flapping.cancel()
            await asyncio.sleep(0.01)
        async with asyncio.timeout(0.5):
            await b1.join()

    with_cluster(scenario)


def test_a_stopping_broker_ends_waiting_calls_and_refuses_new_ones() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        (first,) = await b1.stable(1)
        b1.link.pause = asyncio.Event()
        waits = [b1.join(group="h"), b1.join(first), b1.join(group="i")]
        commit = asyncio.ensure_future(outcome(b1.commit(1, first, 1)))
        await asyncio.sleep(1)
        b1.running.cancel()
        answers = [await outcome(each) for each in waits]
        assert set(answers) <= {NotCoordinator, Stopping}
        assert await commit in (NotCoordinator, Stopping, OutcomeUnknown)
        assert await outcome(b1.join()) is Stopping
        assert await outcome(b1.heartbeat(first, 1)) is Stopping

    with_cluster(scenario)


@pytest.mark.parametrize("steps", range(24))
def test_no_call_hangs_whenever_its_coordinator_stops(steps: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        (first,) = await b1.stable(1)
        asked = (b1.join(first), b1.join(group="h"), b1.commit(1, first, 1), b1.commit(1, group="i"), b1.leave("m", group="j"))
        calls = [asyncio.ensure_future(outcome(call)) for call in asked]
        for _ in range(steps):
            await asyncio.sleep(0.0005 if steps > 12 else 0)
        b1.running.cancel()
        reported = [NotCoordinator, Stopping, OutcomeUnknown, UnknownMember]
        assert all(answer in reported or isinstance(answer, dict | Joined) for answer in await asyncio.gather(*calls))

    with_cluster(scenario, shuffled=steps)


# ── operators, and bounds ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_group_is_deleted_with_its_offsets_once_it_is_empty() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        (first,) = await b1.stable(1)
        await b1.commit(3, first, 1)
        with pytest.raises(GroupNotEmpty):
            await b1.groups.delete("g")
        await b1.leave(first)
        many = [TopicPartition(P0.topic_id, Partition(number)) for number in range(200)]
        offsets = {at: CommittedOffset(offset=7, committed_at_ms=0) for at in many}
        await b1.groups.commit("g", NO_MEMBER, NO_INSTANCE, NO_GENERATION, offsets)
        await b1.groups.delete("g")
        assert await cluster.keys() == []
        with pytest.raises(UnknownGroup):
            await b1.groups.delete("g")

    with_cluster(scenario)


def test_a_commit_that_meets_the_deletion_leaves_no_offset_without_a_group() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        await b1.commit(1)
        for pause_ms in range(12):
            committing = asyncio.ensure_future(outcome(b1.commit(2, partition=P1)))
            await asyncio.sleep(pause_ms / 1000)
            await b1.groups.delete("g")
            assert await committing in ({}, NotCoordinator)
            assert await cluster.keys() == [], pause_ms
            await b1.commit(1)

    with_cluster(scenario)


def test_offsets_of_single_partitions_are_deleted_only_while_the_group_is_empty() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        await b1.commit(1, partition=P0)
        await b1.commit(2, partition=P1)
        await b1.groups.delete_offsets("g", [P0])
        assert list((await b1.groups.offsets("g")).committed) == [P1]
        with pytest.raises(UnknownGroup):
            await b1.groups.delete_offsets("other", [P0])
        await b1.join()
        with pytest.raises(GroupNotEmpty):
            await b1.groups.delete_offsets("g", [P1])

    with_cluster(scenario)


def test_a_damaged_group_is_reported_as_corrupt_and_other_groups_go_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        await cluster.etcd.transact([], [Put(LAYOUT.group("g"), b"{")])
        assert getattr(await outcome(b1.join()), "code", "") == "CORRUPT"
        assert (await b1.join(group="h")).generation == 1

    with_cluster(scenario)


def test_no_more_groups_are_loaded_than_may_be_and_names_are_checked() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator(replace(SETTINGS, groups_max=1))
        await b1.join()
        assert await outcome(b1.join(group="h")) is Throttled
        assert await outcome(b1.heartbeat(MemberId("m"), 1, group="")) is InvalidGroupName

    with_cluster(scenario)


async def a_large_group(at: Coordinated) -> list[TopicPartition]:
    """Of more offsets than one transaction deletes."""
    partitions = [TopicPartition(P0.topic_id, Partition(number)) for number in range(300)]
    offsets = {partition: CommittedOffset(offset=7, committed_at_ms=0) for partition in partitions}
    assert await at.groups.commit("g", NO_MEMBER, NO_INSTANCE, NO_GENERATION, offsets) == {}
    return partitions


def refuse_after(at: Coordinated, transactions: int) -> None:
    """The store is down for one transaction after so many."""

    async def next_one() -> None:
        refuse_after(at, transactions - 1)

    async def refused() -> None:
        raise unavailable()

    at.link.before_transaction = next_one if transactions else refused


@pytest.mark.parametrize("whole", [True, False])
def test_a_deletion_that_fails_half_way_does_not_say_that_nothing_was_written(whole: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        partitions = await a_large_group(b1)

        async def delete() -> None:
            await (b1.groups.delete("g") if whole else b1.groups.delete_offsets("g", partitions))

        refuse_after(b1, 2 if whole else 1)  # of a whole group the record is written first
        with pytest.raises(OutcomeUnknown, match=r"128 of the 30[01] keys"):
            await delete()
        assert len((await b1.groups.offsets("g")).committed) == 300 - 128
        await delete()
        assert (await b1.groups.offsets("g")).committed == {}

    with_cluster(scenario)


@pytest.mark.parametrize(("written", "reported"), [(0, "shutting down"), (1, "0 of the 301 keys"), (2, "128 of the 301 keys")])
def test_a_broker_that_stops_in_the_middle_of_a_deletion_says_what_was_written(written: int, reported: str) -> None:
    """After the first transaction, which rewrites the record, "shutting down" would say that nothing was written."""

    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        await a_large_group(b1)
        left = written

        async def stop_at_the_next() -> None:
            nonlocal left
            if not left:
                b1.running.cancel()
                await asyncio.Event().wait()
            left -= 1
            b1.link.before_transaction = stop_at_the_next

        b1.link.before_transaction = stop_at_the_next
        with pytest.raises(OutcomeUnknown if written else Stopping, match=reported):
            await b1.groups.delete("g")

    with_cluster(scenario)


def test_a_deletion_whose_answer_is_lost_is_an_unknown_outcome() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        await b1.commit(1)

        async def lose_the_next() -> None:
            b1.link.before_transaction = lose

        async def lose() -> None:
            b1.link.lose_answers = 1

        b1.link.before_transaction = lose_the_next
        assert await outcome(b1.groups.delete("g")) is OutcomeUnknown
        assert await cluster.keys() == []

    with_cluster(scenario)


def test_a_damaged_offset_is_reported_beside_the_others_and_repaired_by_a_commit() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        await b1.commit(1)
        await cluster.etcd.transact([], [Put(LAYOUT.offset("g", P1), b"{")])
        stored = await b1.groups.offsets("g")
        assert {at: each.offset for at, each in stored.committed.items()} == {P0: 1}
        assert [(at, type(error)) for at, error in stored.damaged.items()] == [(P1, Corrupt)]
        await b1.commit(7, partition=P1)
        stored = await b1.groups.offsets("g")
        assert ({at: each.offset for at, each in stored.committed.items()}, stored.damaged) == ({P0: 1, P1: 7}, {})

    with_cluster(scenario)


def test_a_group_with_a_damaged_offset_can_be_deleted_and_forgotten() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1 = await cluster.coordinator()
        for way in (b1.groups.delete("g"), b1.groups.forget("g", lambda _, stored: (list(stored.committed), True))):
            await b1.commit(1)
            await cluster.etcd.transact([], [Put(LAYOUT.offset("g", P1), b"{")])
            await way
            assert await cluster.keys() == []

    with_cluster(scenario)
