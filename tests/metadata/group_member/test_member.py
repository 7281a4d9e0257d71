"""The life of a member: how it comes in, what it owns when, how it is lost, and that no two ever read the same."""

from __future__ import annotations

import asyncio

import pytest

from metadata.errors import (
    Denied,
    GroupFull,
    InstanceFenced,
    InvalidArgument,
    NotCoordinator,
    OutcomeUnknown,
    Throttled,
    TidelogError,
    Unavailable,
)
from metadata.groups.model import NO_GENERATION, NO_MEMBER
from tests.kit.metadata.group_members import Team, partitions, with_team
from tests.simulation.virtual_loop import virtual_loop

# ── coming, staying, going ──────────────────────────────────────────────────────────────────────────────────────────────


def test_members_share_the_partitions_and_each_is_notified_of_its_new_ones() -> None:
    async def scenario(team: Team) -> None:
        a, b = await team.of(2)
        assert {len(a.reading), len(b.reading)} == {2}
        assert [what for what, _ in (*a.reported, *b.reported)] == ["assigned", "assigned"]
        assert a.member.owned == a.reading

    with_team(scenario)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_new_member_gets_its_share_and_a_leaving_one_gives_up_its_own(assignor: str) -> None:
    async def scenario(team: Team) -> None:
        (a,) = await team.of(1, assignors=(assignor,))
        (b,) = await team.of(1, assignors=(assignor,))
        assert len(a.reading) == len(b.reading) == 2
        a.member.stop()
        await asyncio.sleep(1)
        assert a.running is not None
        assert a.running.done()
        assert not a.reading
        await team.rest()
        assert len(b.reading) == 4

    with_team(scenario)


def test_a_cooperative_member_keeps_what_does_not_move_and_an_eager_one_gives_up_all() -> None:
    async def scenario(team: Team) -> None:
        (a,) = await team.of(1)
        await team.of(1)
        assert [what for what, _ in a.reported] == ["assigned", "revoked"]
        assert len(a.heard("revoked")[0]) == 2

    async def eagerly(team: Team) -> None:
        (a,) = await team.of(1, assignors=("range",))
        await team.of(1, assignors=("range",))
        assert [(what, len(moved)) for what, moved in a.reported] == [("assigned", 4), ("revoked", 4), ("assigned", 2)]

    with_team(scenario)
    with_team(eagerly)


def test_an_eager_assignor_that_is_sticky_leaves_partitions_where_they_were() -> None:
    async def scenario(team: Team) -> None:
        a, b = await team.of(2, assignors=("sticky",))
        before = set(a.reading), set(b.reading)
        a.member.subscription_changed()
        await asyncio.sleep(0.5)
        await team.rest(20)
        assert len(a.heard("assigned")) == 2
        assert (a.reading, b.reading) == before

    with_team(scenario)


def test_heartbeats_go_on_while_the_caller_and_the_reader_are_slow() -> None:
    async def scenario(team: Team) -> None:
        (a,) = await team.of(1)
        a.slow_s["revoked"] = 40
        b = team.enter()
        await team.rest(55)
        assert len(b.reading) == 2
        assert not a.heard("lost")

    with_team(scenario)


def test_a_member_that_was_stopped_has_left_and_a_static_one_comes_back_to_what_it_had_without_a_rebalance() -> None:
    async def scenario(team: Team) -> None:
        a, b = await team.of(2, instance_id="")
        a.member.stop()
        await asyncio.sleep(0.1)
        assert list((await team.coordinator.groups.describe("g")).members) == [b.member.member_id]

    async def statically(team: Team) -> None:
        a, b = team.enter(instance_id="a"), team.enter(instance_id="b")
        await team.rest()
        before = set(a.reading)
        a.member.stop()
        await asyncio.sleep(2)
        assert not a.reading
        assert len((await team.coordinator.groups.describe("g")).members) == 2
        back = team.enter(instance_id="a")
        await team.rest()
        assert back.reading == before
        assert (await team.coordinator.groups.describe("g")).generation == 1
        assert len(b.reported) == 1

    with_team(scenario)
    with_team(statically)


def test_two_processes_under_one_instance_id_the_former_one_ends_with_the_error_and_does_not_come_back() -> None:
    async def scenario(team: Team) -> None:
        former = team.enter(instance_id="a")
        await team.rest()
        team.enter(instance_id="a")
        with pytest.raises(InstanceFenced):
            await former.end()
        assert former.heard("lost")
        assert "leave" not in former.endpoints.asked
        await team.rest()

    with_team(scenario)


def test_cancelled_at_any_moment_it_leaves_no_task_and_the_group_only_where_it_is_asked_to() -> None:
    async def scenario(team: Team) -> None:
        await team.of(1)
        for waits_s in [step / 50 for step in range(60)]:
            tasks = len(asyncio.all_tasks())
            a = team.enter()
            await asyncio.sleep(waits_s)
            assert a.running is not None
            a.running.cancel()
            await asyncio.wait([a.running])
            await a.member.leave()
            assert a.member.member_id == NO_MEMBER
            assert not a.member.owned
            await asyncio.sleep(0.3)
            assert len(asyncio.all_tasks()) == tasks
            team.readers.remove(a)
        await team.rest()
        assert len((await team.coordinator.groups.describe("g")).members) == 1

    with_team(scenario)


def test_an_error_of_a_reader_reaches_the_caller_after_the_group_was_left() -> None:
    for where in ("assigned", "revoked", "subscribed", "partition_counts"):

        async def scenario(team: Team, where: str = where) -> None:
            (a,) = await team.of(1)
            a.fails[where] = ZeroDivisionError(where)
            b = team.enter()
            if where == "assigned":
                team.counts["orders"] = 12
            with pytest.raises(ZeroDivisionError, match=where):
                await a.end()
            assert a.heard("lost")
            await team.rest()
            assert len(b.reading) == team.counts["orders"]

        with_team(scenario)


# ── the topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_new_partitions_are_found_within_a_heartbeat_and_those_of_topics_that_only_others_read_when_the_leader_looks() -> None:
    async def scenario(team: Team) -> None:
        await team.of(2)
        team.counts["orders"] = 6
        await team.rest(8)

    async def of_others(team: Team) -> None:
        team.counts["events"] = 1
        await team.of(1)
        await team.rest()
        team.enter("events")
        await team.rest()
        team.counts["events"] = 3
        await asyncio.sleep(1)
        await team.rest(45)

    with_team(scenario)
    with_team(of_others)


def test_a_subscription_that_changes_while_the_member_joins_is_taken_up_when_it_has_joined() -> None:
    async def scenario(team: Team) -> None:
        team.counts["events"] = 2
        a = team.enter()
        await asyncio.sleep(0.2)
        a.topics = frozenset({"events", "orders"})
        a.member.subscription_changed()
        await team.rest()
        a.topics = frozenset({"events"})
        a.member.subscription_changed()
        await team.rest()
        assert a.reading == partitions("events", 0, 1)
        a.topics = frozenset({"orders"})  # unsaid
        await asyncio.sleep(4)
        await team.rest()

    with_team(scenario)


def test_a_reader_with_more_partitions_than_the_reported_count_causes_no_endless_rebalances() -> None:
    async def scenario(team: Team) -> None:
        (a,) = await team.of(1)
        reported = a._team.counts | {"orders": 2}

        async def less(topics: object) -> dict[str, int]:
            return reported

        a.partition_counts = less  # type: ignore[method-assign]
        a.member.subscription_changed()
        await asyncio.sleep(120)
        assert len(a.reading) == 4
        assert (await team.coordinator.groups.describe("g")).generation == 2

    with_team(scenario)


# ── trouble ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cut_off_member_gives_up_its_partitions_before_others_get_them_and_rejoins() -> None:
    async def scenario(team: Team) -> None:
        a, b = await team.of(2)
        loop = virtual_loop()
        a.endpoints.is_cut = True
        cut_s = loop.time()
        await team.until(lambda: bool(a.heard("lost")))
        assert loop.time() - cut_s < 10
        assert len(b.reading) == 2
        await team.until(lambda: len(b.reading) == 4)
        assert loop.time() - cut_s < 20
        a.endpoints.is_cut = False
        await team.rest(80)

    with_team(scenario)


def test_members_that_wait_for_a_slow_one_beyond_its_poll_interval_keep_their_partitions() -> None:
    async def scenario(team: Team) -> None:
        a, b, c = await team.of(3, max_poll_interval_ms=20_000)
        slow = next(reader for reader in (a, b, c) if len(reader.reading) == 2)
        slow.slow_s["revoked"] = 30
        before = {reader.name: set(reader.reading) for reader in (a, b, c) if reader is not slow}
        team.enter(max_poll_interval_ms=20_000)
        await team.until(lambda: slow.busy > 0)
        team.enter(max_poll_interval_ms=20_000)
        await team.until(lambda: slow.endpoints.asked.count("join") > 3 and not slow.busy)
        assert all(before[reader.name] <= reader.reading and not reader.heard("lost") for reader in (a, b, c) if reader is not slow)
        await team.rest(40)

    with_team(scenario)


def test_a_member_cut_off_in_a_rebalance_shares_no_partition_with_the_next_generation() -> None:
    async def scenario(team: Team) -> None:
        a, b, dead = await team.of(3, max_poll_interval_ms=6_000)
        dead.crash()
        team.enter(max_poll_interval_ms=6_000)
        await asyncio.sleep(5)
        b.endpoints.break_off()
        before = a.member.generation
        await team.until(lambda: a.member.generation > before)
        assert b.reading, "by its own clock it may go on"
        await team.until(lambda: not b.reading)
        b.endpoints.is_cut = False
        await team.rest(40)

    with_team(scenario)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_rebalance_that_it_does_not_hear_of_costs_it_what_it_owns_in_time(assignor: str) -> None:
    """Its heartbeats arrive, their answers do not: the coordinator knows it alive, and opens the barrier without it at last."""

    async def scenario(team: Team) -> None:
        a, _b = await team.of(2, assignors=(assignor,), max_poll_interval_ms=6_000)
        a.endpoints.cut_answers = True
        team.enter(assignors=(assignor,), max_poll_interval_ms=6_000)
        for _ in range(3_000):
            await asyncio.sleep(0.01)
            team.check()
        a.endpoints.cut_answers = False
        assert a.heard("lost") or a.heard("revoked")
        await team.rest(80)

    with_team(scenario)


def test_a_frozen_process_owns_nothing_when_it_wakes_before_any_notification() -> None:
    async def scenario(team: Team) -> None:
        a, b = await team.of(2)
        loop = virtual_loop()
        loop.freeze(a.name)
        a.is_frozen = True
        await asyncio.sleep(30)
        team.check()
        assert len(b.reading) == 4
        assert len(a.reading) == 2
        assert not a.believes
        loop.thaw(a.name)
        await asyncio.sleep(0)
        a.is_frozen = False
        assert not a.member.owned
        await team.rest(20)

    with_team(scenario)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_process_that_was_frozen_while_it_synced_is_not_assigned_what_others_own_meanwhile(assignor: str) -> None:
    async def scenario(team: Team) -> None:
        await team.of(2, assignors=(assignor,))
        late = team.enter(assignors=(assignor,))
        await team.until(lambda: late.endpoints.asked[-1:] == ["sync"])
        loop = virtual_loop()
        loop.freeze(late.name)
        await asyncio.sleep(60)
        team.check()
        loop.thaw(late.name)
        await team.rest(20)
        assert len(late.heard("assigned")) == 1, "and what the first answer assigned was not announced"

    with_team(scenario)


def test_a_coordinator_that_moves_is_followed_without_a_rebalance() -> None:
    async def scenario(team: Team) -> None:
        a, b = await team.of(2)
        for _ in range(5):
            await team.hand_over()
            await asyncio.sleep(7)
        await team.rest()
        assert (await team.coordinator.groups.describe("g")).generation == 1
        assert len(a.reported) == len(b.reported) == 1

    with_team(scenario)


@pytest.mark.slow
def test_a_coordinator_that_moves_while_members_join_or_sync_is_followed() -> None:
    for waits_s in [step / 40 for step in range(50)]:

        async def scenario(team: Team, waits_s: float = waits_s) -> None:
            await team.of(2)
            team.enter()
            await asyncio.sleep(waits_s)
            await team.hand_over()
            await team.rest(20)

        with_team(scenario)


def test_live_members_keep_their_partitions_while_the_coordinator_moves_and_one_is_dead() -> None:
    async def scenario(team: Team) -> None:
        a, b, dead = await team.of(3)
        before = set(a.reading), set(b.reading)
        dead.crash()
        team.enter()
        for _ in range(30):  # each gives the dead half of its session, to find it
            await asyncio.sleep(4)
            await team.hand_over()
            team.check()
        assert (a.reading, b.reading) == before
        await team.rest(30)
        assert not a.heard("lost") + b.heard("lost")

    with_team(scenario)


def test_a_dead_member_is_missed_though_the_coordinator_moves_more_often_than_sessions_end() -> None:
    async def scenario(team: Team) -> None:
        *_, dead = await team.of(3)
        dead.crash()
        new = team.enter()
        for _ in range(4):
            await asyncio.sleep(6)
            await team.hand_over()
        assert new.reading

    with_team(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["join", "sync", "heartbeat"])
@pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown, Throttled], ids=lambda kind: kind.__name__)
def test_answers_that_are_lost_are_asked_for_again(method: str, error: type[TidelogError]) -> None:
    async def scenario(team: Team) -> None:
        (a,) = await team.of(1)
        for reader in (a, team.enter()):
            reader.endpoints.refusals[method] = [error("lost"), error("lost"), error("lost")]
        await team.rest(20)
        assert not a.heard("lost")

    with_team(scenario)


@pytest.mark.parametrize(("error", "in_20_s"), [(Unavailable, range(20, 45)), (Throttled, range(6, 15))], ids=["lost", "busy"])
def test_members_do_not_ask_a_busy_coordinator_more_often_than_ten_times_in_a_session(
    error: type[TidelogError], in_20_s: range
) -> None:
    async def scenario(team: Team) -> None:
        (a,) = await team.of(1, session_timeout_ms=30_000)
        a.endpoints.refusals["heartbeat"] = [error("too many calls") for _ in range(100)]
        before = a.endpoints.asked.count("heartbeat")
        await asyncio.sleep(20)
        assert a.endpoints.asked.count("heartbeat") - before in in_20_s
        a.endpoints.refusals.clear()
        await team.rest()
        assert not a.heard("lost")

    with_team(scenario)


def test_a_member_with_a_short_session_finds_a_coordinator_that_moves_several_times_within_it() -> None:
    async def scenario(team: Team) -> None:
        (member,) = await team.of(1, session_timeout_ms=6_000, heartbeat_interval_ms=2_000)
        member.endpoints.refusals["heartbeat"] = [NotCoordinator("moved")] * 5
        await asyncio.sleep(10)
        assert not member.endpoints.refusals["heartbeat"]
        assert not member.heard("lost")

    with_team(scenario)


def test_an_answer_to_join_that_is_never_delivered_is_noticed_by_heartbeats() -> None:
    async def scenario(team: Team) -> None:
        a, _b = await team.of(2)
        team.enter()
        await team.until(lambda: a.endpoints.asked[-1] == "join")
        a.endpoints.cut_answers = True
        await asyncio.sleep(0.5)
        a.endpoints.cut_answers = False
        await team.rest(10)
        assert not a.heard("lost")

    with_team(scenario)


@pytest.mark.parametrize("error", [GroupFull, InvalidArgument, Denied], ids=lambda kind: kind.__name__)
def test_an_error_that_no_retry_can_mend_is_raised(error: type[TidelogError]) -> None:
    async def scenario(team: Team) -> None:
        a = team.enter()
        a.endpoints.refusals["join"] = [error("no")]
        with pytest.raises(error):
            await a.end()
        assert a.endpoints.asked == ["join"]

    with_team(scenario)


def test_a_caller_that_takes_no_records_loses_its_share_until_it_does() -> None:
    async def scenario(team: Team) -> None:
        a, b = await team.of(2)
        a.member.polled()
        for _ in range(58):
            b.member.polled()
            await asyncio.sleep(1)
        assert len(a.reading) == 2
        b.member.polls()  # it waits for records
        await asyncio.sleep(6)
        assert [what for what, _ in a.reported] == ["assigned", "lost"]
        assert "leave" in a.endpoints.asked
        assert len(b.reading) == 4
        await asyncio.sleep(300)
        assert a.member.generation == NO_GENERATION
        assert len(b.reading) == 4
        a.member.polled()
        await team.rest(10)
        assert len(a.reading) == 2

    with_team(scenario)


def test_a_static_member_whose_caller_takes_no_records_falls_silent_and_does_not_leave() -> None:
    async def scenario(team: Team) -> None:
        a, b = team.enter(instance_id="a"), team.enter(instance_id="b")
        await team.rest()
        a.member.polled()
        await asyncio.sleep(62)
        assert a.heard("lost")
        assert "leave" not in a.endpoints.asked
        assert len((await team.coordinator.groups.describe("g")).members) == 2
        await asyncio.sleep(20)
        assert len(b.reading) == 4
        a.member.polled()
        await team.rest(15)

    with_team(scenario)


# ── kinds of assignors together ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_cooperative_member_gives_up_its_partitions_before_the_group_becomes_eager() -> None:
    async def scenario(team: Team) -> None:
        a, b = await team.of(2)
        old = team.enter(assignors=("range",))
        await team.rest(15)
        assert len(a.heard("revoked")[0]) == 2, "all of it"
        assert {len(reader.reading) for reader in (a, b, old)} == {1, 2}
        old.member.stop()
        await asyncio.sleep(0.2)
        await team.rest(15)
        a.reported.clear()
        await team.of(1)
        assert all(len(moved) == 1 for moved in a.heard("revoked")), "cooperative again"

    with_team(scenario)


def test_a_leader_that_knows_only_an_eager_assignor_assigns_nothing_that_is_still_read() -> None:
    async def scenario(team: Team) -> None:
        a, b = await team.of(2)
        leader = a if (await team.coordinator.groups.describe("g")).leader == a.member.member_id else b
        other = b if leader is a else a
        other.slow_s["revoked"] = 2
        leader.member.stop()
        old = team.enter(assignors=("range",))
        await team.rest(20)
        assert len(old.reading) == len(other.reading) == 2

    with_team(scenario)
