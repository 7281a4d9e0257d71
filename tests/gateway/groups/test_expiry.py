"""What is forgotten of consumer groups, when, and that nothing goes which somebody still commits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.groups.expiry import GRACE_MS, ExpiredState, GroupExpiry, expired
from gateway.groups.maintenance import GroupMaintenance
from gateway.groups.scan import SETTLES_S, GroupScanner
from metadata.errors import UnknownGroup
from metadata.groups.model import Group, GroupPhase
from metadata.groups.offsets import CommittedOffset
from metadata.groups.settings import GroupSettings
from metadata.model import Partition, TopicId, TopicPartition
from metadata.store.interface import Put, RangeResult
from metadata.topics.topic import encode_topic
from segments.object_store.store_clock import StoreClock
from tests.kit.gateway.coordinated_groups import LAYOUT, P0, P1, Cluster, Coordinated, outcome, with_cluster
from tests.kit.gateway.reported_log import TOPIC_ID, Topics, topic
from tests.kit.metadata.faulty_store import unavailable
from tests.simulation.virtual_loop import virtual_loop

RETENTION_MS = 3_600_000
INTERVAL_S = 300.0
NOW_MS = 100 * RETENTION_MS
OTHER = TopicPartition(TopicId("b" * 32), Partition(0))


def committed(ago_ms: int) -> CommittedOffset:
    return CommittedOffset(offset=1, committed_at_ms=NOW_MS - ago_ms)


def decided(group: Group, offsets: dict[TopicPartition, CommittedOffset], *deleted: str) -> ExpiredState:
    return expired(group, offsets, deleted={TopicId(each) for each in deleted}, now_ms=NOW_MS, retention_ms=RETENTION_MS)


# ── what is over ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_time_of_a_group_that_had_members_runs_from_when_the_last_one_went() -> None:
    long_ago = {P0: committed(50 * RETENTION_MS)}
    assert decided(Group(changed_at_ms=NOW_MS - RETENTION_MS + 1), long_ago).is_nothing
    assert decided(Group(changed_at_ms=NOW_MS - RETENTION_MS), long_ago) == ExpiredState([P0], True)


def test_of_a_group_that_commits_by_hand_each_offset_has_its_own_time() -> None:
    by_hand = Group(changed_at_ms=NOW_MS - 50 * RETENTION_MS)
    assert decided(by_hand, {P0: committed(RETENTION_MS), P1: committed(RETENTION_MS - 1)}) == ExpiredState([P0], False)


def test_a_group_with_a_damaged_offset_of_unknown_age_is_kept_for_the_whole_retention() -> None:
    def ends(ago_ms: int) -> ExpiredState:
        group = Group(changed_at_ms=NOW_MS - ago_ms)
        return expired(group, {}, damaged=True, deleted=(), now_ms=NOW_MS, retention_ms=RETENTION_MS)

    assert ends(RETENTION_MS - 1).is_nothing
    assert ends(RETENTION_MS) == ExpiredState([], True)


@pytest.mark.parametrize("phase", [GroupPhase.PREPARING, GroupPhase.COMPLETING, GroupPhase.STABLE])
def test_a_group_with_members_loses_nothing(phase: GroupPhase) -> None:
    assert decided(Group(phase=phase), {P0: committed(50 * RETENTION_MS)}).is_nothing


def test_offsets_of_a_deleted_topic_are_deleted_after_a_grace_even_if_the_group_has_members() -> None:
    stable = Group(phase=GroupPhase.STABLE)
    assert decided(
        stable, {P0: committed(GRACE_MS), P1: committed(GRACE_MS - 1), OTHER: committed(GRACE_MS)}, TOPIC_ID
    ) == ExpiredState([P0], False)


def test_a_group_that_holds_nothing_goes_after_a_grace() -> None:
    assert decided(Group(changed_at_ms=NOW_MS - GRACE_MS + 1), {}).is_nothing
    assert decided(Group(changed_at_ms=NOW_MS - GRACE_MS), {}) == ExpiredState([], True)
    assert decided(Group(phase=GroupPhase.STABLE), {}).is_nothing


def test_clocks_that_are_ahead_only_put_off() -> None:
    assert decided(Group(changed_at_ms=NOW_MS + RETENTION_MS), {P0: committed(-RETENTION_MS)}).is_nothing


# ── at a coordinator, under virtual time ────────────────────────────────────────────────────────────────────────────────


class Kept:
    """A coordinator with its expiry, whose topics are those that a test makes."""

    def __init__(self, cluster: Cluster, at: Coordinated) -> None:
        self.cluster = cluster
        self.at = at
        self.topics = Topics(topic())
        self.expiry = GroupExpiry(at.link, LAYOUT, at.groups, self.topics, retention_ms=RETENTION_MS, now_ms=virtual_loop().now_ms)
        self.scan = GroupScanner(
            at.link,
            LAYOUT,
            at.groups.known_offsets,
            (self.expiry.visit,),
            interval_s=INTERVAL_S,
            coordinates=lambda _: at.is_mine,
            now_ms=virtual_loop().now_ms,
        )

    async def store(self, *names_and_ids: tuple[str, str]) -> None:
        made = [topic(name, topic_id) for name, topic_id in names_and_ids]
        await self.cluster.etcd.transact([], [Put(LAYOUT.topic(each.name), encode_topic(each)) for each in made])


def with_expiry(scenario: Callable[[Kept], Awaitable[None]]) -> None:
    async def prepared(cluster: Cluster) -> None:
        await scenario(Kept(cluster, await cluster.coordinator()))

    with_cluster(prepared)


async def sleep_ms(duration_ms: int) -> None:
    await asyncio.sleep(duration_ms / 1000)


def test_a_group_and_its_offsets_are_gone_once_it_was_empty_for_the_retention() -> None:
    async def scenario(kept: Kept) -> None:
        (first,) = await kept.at.stable(1)
        await kept.at.commit(7, first, 1)
        for _ in range(2 * RETENTION_MS // 5_000):
            await asyncio.sleep(5)
            await kept.at.heartbeat(first, 1)
        await kept.scan.once()
        await kept.at.leave(first)
        await sleep_ms(RETENTION_MS - 1_000)
        await kept.scan.once()
        assert await kept.cluster.committed() == 7
        await sleep_ms(1_000)
        await kept.scan.once()
        assert await kept.cluster.keys() == []
        assert (kept.expiry.counts.offsets, kept.expiry.counts.groups) == (1, 1)
        assert await outcome(kept.at.groups.describe("g")) is UnknownGroup

    with_expiry(scenario)


def test_groups_that_no_member_calls_for_expire_as_well() -> None:
    async def scenario(kept: Kept) -> None:
        await kept.at.commit(7)
        kept.at.hand_over()
        heir = Kept(kept.cluster, await kept.cluster.coordinator())
        await sleep_ms(RETENTION_MS)
        await kept.scan.once()
        assert await kept.cluster.committed() == 7, "it is another broker's"
        await heir.scan.once()
        assert await kept.cluster.keys() == []

    with_expiry(scenario)


def test_members_that_died_with_their_coordinator_do_not_keep_their_group_from_expiring() -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        first, _ = await b1.stable()
        await b1.commit(10, first, 1)
        b1.hand_over()  # and no member calls for the group any more
        scanning = asyncio.ensure_future(Kept(cluster, b2).scan.run())
        await sleep_ms(RETENTION_MS)
        assert (await b2.groups.describe("g")).phase is GroupPhase.EMPTY
        await sleep_ms(RETENTION_MS)
        assert await cluster.keys() == []
        scanning.cancel()

    with_cluster(scenario)


def test_while_the_broker_has_no_session_members_of_others_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        b1, b2 = await cluster.coordinator(), await cluster.coordinator()
        await b1.stable()
        b1.hand_over()
        b2.is_mine = False
        await Kept(cluster, b2).scan.once()
        assert len(b2.groups) == 0
        assert not caplog.records

    with_cluster(scenario)


def test_a_group_that_has_not_expired_costs_one_read_of_its_offsets_and_no_write() -> None:
    async def scenario(kept: Kept) -> None:
        for number in range(3):
            await kept.at.commit(7, group=f"g{number}")
        kept.at.hand_over()
        heir = Kept(kept.cluster, await kept.cluster.coordinator())
        await heir.scan.once()
        assert (heir.at.link.ranges, len(heir.at.link.transactions)) == (1 + 3, 0)
        await heir.scan.once()
        assert (heir.at.link.ranges, len(heir.at.link.transactions)) == (1 + 3 + 1, 0)
        assert len(heir.at.groups) == 0, "nothing was loaded"

    with_expiry(scenario)


def test_a_commit_that_is_under_way_while_its_offset_expires_is_kept() -> None:
    async def scenario(kept: Kept) -> None:
        await kept.at.commit(7)
        await kept.at.commit(7, partition=P1)
        await sleep_ms(RETENTION_MS)
        kept.at.link.pause = asyncio.Event()
        commit = asyncio.ensure_future(kept.at.commit(8))
        await asyncio.sleep(0.1)
        scan = asyncio.ensure_future(kept.scan.once())
        await asyncio.sleep(0.1)
        another = asyncio.ensure_future(kept.at.commit(9))
        await asyncio.sleep(0.1)
        kept.at.link.pause.set()
        await asyncio.gather(commit, scan, another)
        assert await kept.cluster.committed() == 9
        assert await kept.cluster.committed(partition=P1) is None
        assert (kept.expiry.counts.offsets, kept.expiry.counts.groups) == (1, 0)
        await kept.at.commit(10)
        assert await kept.cluster.committed() == 10, "the group goes on as before"

    with_expiry(scenario)


def test_a_commit_that_begins_while_it_is_decided_waits_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(kept: Kept) -> None:
        await kept.at.commit(7)
        await sleep_ms(RETENTION_MS - 1_000)
        await kept.at.commit(7, partition=P1)
        await sleep_ms(1_000)
        commits: list[asyncio.Task[object]] = []
        read, before = kept.at.link.range, len(kept.at.link.transactions)

        async def read_slowly(prefix: str, **how: Any) -> RangeResult:
            page = await read(prefix, **how)
            if prefix == LAYOUT.offsets("g") and len(kept.at.link.transactions) > before:
                commits.append(asyncio.ensure_future(kept.at.commit(8)))
                await asyncio.sleep(0.1)
            return page

        monkeypatch.setattr(kept.at.link, "range", read_slowly)
        await kept.scan.once()
        (commit,) = commits
        assert await commit == {}
        assert await kept.cluster.committed() == 8
        assert kept.expiry.counts.offsets == 1

    with_expiry(scenario)


def test_a_commit_during_the_expiry_of_its_group_creates_the_group_again() -> None:
    async def scenario(kept: Kept) -> None:
        await kept.at.commit(7)
        await sleep_ms(RETENTION_MS)
        kept.at.link.pause = asyncio.Event()
        scan = asyncio.ensure_future(kept.scan.once())
        await asyncio.sleep(0.1)
        commit = asyncio.ensure_future(outcome(kept.at.commit(8)))
        await asyncio.sleep(0.1)
        kept.at.link.pause.set()
        await asyncio.gather(scan, commit)
        again = await outcome(kept.at.commit(8)) if commit.result() != {} else {}
        assert again == {}
        assert await kept.cluster.committed() == 8

    with_expiry(scenario)


def test_offsets_of_a_deleted_topic_go_though_members_are_there_and_those_of_a_new_topic_stay() -> None:
    async def scenario(kept: Kept) -> None:
        await kept.store(("orders", TOPIC_ID), ("new", OTHER.topic_id))  # the cache has not heard of `new` yet
        gone = TopicPartition(TopicId("c" * 32), Partition(0))
        (first,) = await kept.at.stable(1)
        for partition in (P0, OTHER, gone):
            await kept.at.commit(7, first, 1, partition=partition)
        for _ in range(GRACE_MS // 5_000):
            await kept.scan.once()
            assert await kept.cluster.committed(partition=gone) == 7
            await asyncio.sleep(5)
            await kept.at.heartbeat(first, 1)
        await kept.scan.once()
        assert await kept.cluster.committed(partition=gone) is None
        assert await kept.cluster.committed(partition=OTHER) == 7
        assert await kept.cluster.committed() == 7
        await kept.at.heartbeat(first, 1)
        await kept.at.commit(8, first, 1)
        assert await kept.cluster.committed() == 8

    with_expiry(scenario)


def test_while_a_topic_can_not_be_read_no_topic_is_taken_for_deleted(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(kept: Kept) -> None:
        await kept.cluster.etcd.transact([], [Put(LAYOUT.topic("torn"), b"{")])
        await kept.at.commit(7, partition=OTHER)
        await sleep_ms(GRACE_MS)
        await kept.scan.once()
        assert await kept.cluster.committed(partition=OTHER) == 7

    with caplog.at_level(logging.ERROR):
        with_expiry(scenario)
    assert "offsets of deleted topics are kept for now" in caplog.text


def test_a_damaged_group_is_logged_and_does_not_stop_the_expiry_of_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(kept: Kept) -> None:
        await kept.cluster.etcd.transact([], [Put(LAYOUT.group("a"), b"{")])
        await kept.at.commit(7)
        await sleep_ms(RETENTION_MS)
        await kept.scan.once()
        assert await kept.cluster.keys() == ["groups/a"]

    with_expiry(scenario)
    assert "group not scanned key=/tidelog/groups/a" in caplog.text


def test_while_the_store_is_away_nothing_ends_and_it_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(kept: Kept) -> None:
        await kept.at.commit(7)
        kept.at.link.down = unavailable()
        running = asyncio.ensure_future(kept.scan.run())
        await sleep_ms(RETENTION_MS)
        assert await kept.cluster.committed() == 7
        kept.at.link.down = None
        await asyncio.sleep(INTERVAL_S)
        assert await kept.cluster.keys() == []
        running.cancel()

    with_expiry(scenario)
    assert "group scan failed" in caplog.text


def test_groups_that_have_moved_here_are_looked_at_soon() -> None:
    async def scenario(kept: Kept) -> None:
        visited: list[str] = []

        async def visit(name: str, _: Group) -> None:
            visited.append(name)

        scan = GroupScanner(
            kept.at.link,
            LAYOUT,
            kept.at.groups.known_offsets,
            (visit,),
            interval_s=INTERVAL_S,
            coordinates=lambda _: kept.at.is_mine,
            now_ms=virtual_loop().now_ms,
        )
        await kept.at.commit(7)
        kept.at.is_mine = False
        running = asyncio.ensure_future(scan.run())
        await asyncio.sleep(1)
        kept.at.is_mine = True
        scan.soon()
        await asyncio.sleep(SETTLES_S + 1)
        assert visited == ["g"]
        await asyncio.sleep(INTERVAL_S)
        assert visited == ["g", "g"]
        running.cancel()

    with_expiry(scenario)


def test_nothing_is_forgotten_by_a_clock_that_is_ahead_of_the_bucket() -> None:
    async def scenario(kept: Kept) -> None:
        loop, at, ahead_ms = virtual_loop(), kept.at, 0
        clock = StoreClock(lambda: loop.now_ms() + ahead_ms, steady=loop.time)
        no_log: Any = None
        upkeep = GroupMaintenance(
            at.link,
            LAYOUT,
            at.groups,
            no_log,
            kept.topics,
            GroupSettings(offsets_retention_ms=RETENTION_MS),
            coordinates=lambda _: at.is_mine,
            now_ms=clock.stamp_ms,
            expires_ms=clock.now_ms,
        )
        (first,) = await at.stable(1)
        await at.commit(7, first, 1)
        await at.leave(first)
        clock.heard(loop.now_ms(), asked_s=loop.time())
        ahead_ms = 2 * RETENTION_MS
        await upkeep._scan.once()
        assert await kept.cluster.committed() == 7
        await sleep_ms(RETENTION_MS)
        clock.heard(loop.now_ms(), asked_s=loop.time())
        await upkeep._scan.once()
        assert await kept.cluster.keys() == []

    with_expiry(scenario)
