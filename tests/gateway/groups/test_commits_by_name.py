"""Commits that name topics, at a coordinator whose view of the topics lags: the real topic cache, registry and coordinator, on a
virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.access.authorization import acting
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.groups.router import GroupRouter
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode
from gateway.kafka.groups import BY_ID, KafkaGroups
from gateway.kafka.listener_config import Route
from gateway.kafka.protocol.client_messages import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from gateway.topics.names import COMMIT_CATCH_UP_S, GUARDED_COMMITS, LOOKUP_S
from metadata.errors import NotAuthorized
from metadata.groups.model import NO_GENERATION, NO_INSTANCE, NO_MEMBER
from metadata.groups.offsets import CommittedOffset, read_offsets
from metadata.model import Partition, TopicId, TopicPartition
from metadata.store.interface import OPERATIONS_MAX
from metadata.store.write_batcher import Outdated
from metadata.topics.cache import TopicCache
from metadata.topics.registry import TopicRegistry
from tests.kit.gateway.coordinated_groups import LAYOUT, Cluster, Coordinated, with_cluster
from tests.kit.metadata.faulty_store import FaultyStore
from tests.simulation.virtual_loop import virtual_loop

MEMBERS = 2
ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID = 22, 25


class Reads(FaultyStore):
    """Counts the reads of single keys."""

    gets = 0

    async def get(self, key: str) -> Any:
        self.gets += 1
        return await super().get(key)


class Site:
    """A coordinator with a group of two members, and its own view of the topics."""

    def __init__(self, cluster: Cluster, coordinator: Coordinated) -> None:
        self.cluster = cluster
        self.coordinator = coordinator
        self.topics = TopicRegistry(cluster.etcd, LAYOUT)
        self.reads = Reads(cluster.etcd)
        self.cache = TopicCache(self.reads, LAYOUT)
        # The broker that coordinates all groups, if it is another one.
        self.elsewhere: object | None = None
        coordinators: Any = SimpleNamespace(elsewhere=lambda _: self.elsewhere, subscribe=lambda _: None)
        self.router = GroupRouter(coordinator.groups, coordinators, self.cache, *2 * [Any])  # type: ignore[arg-type]  # unused
        self.kafka = self._listener()
        self._watch: asyncio.Task[None] | None = None

    def _listener(self) -> KafkaGroups:
        broker: Any = SimpleNamespace(
            topic_cache=self.cache,
            topics=self.topics,
            groups=SimpleNamespace(check_here=lambda _: None, commit=self.router.commit),
        )
        return KafkaGroups(broker, Any, InterruptibleWaits())  # type: ignore[arg-type]  # no leader is looked up

    async def follow(self) -> None:
        """Lets the view follow the store."""
        self._watch = asyncio.ensure_future(self.cache.run())
        newest = await self.cluster.etcd.get(LAYOUT.partition_count)
        assert newest is not None
        assert await self.cache.wait_for(newest.mod_revision, 1)

    async def lag(self) -> None:
        """Keeps the view as it is."""
        assert self._watch is not None
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch

    async def made_again(self) -> None:
        await self.topics.delete("orders")
        await self.topics.create("orders", 1)

    def make_again_before(self, transactions: int) -> None:
        """Makes the topic again before each of the next transactions."""

        async def between() -> None:
            await self.made_again()
            self.make_again_before(transactions - 1)

        if transactions:
            self.coordinator.link.before_transaction = between

    async def commit(
        self,
        offset: int,
        *,
        generation: int = 1,
        partitions: int = 1,
        member: str | None = None,
        topic: str = "orders",
        more: Sequence[str] = (),
    ) -> set[int]:
        """Returns the codes of the partitions."""
        asked = [OffsetCommitRequestPartition(partition_index=each, committed_offset=offset) for each in range(partitions)]
        request = OffsetCommitRequest(
            group_id="g",
            member_id=self.member if member is None else member,
            generation_id_or_member_epoch=generation,
            topics=[OffsetCommitRequestTopic(name=name, partitions=asked) for name in (topic, *more)],
        )
        connection: Any = SimpleNamespace(listener=SimpleNamespace(route=Route.DIRECT))
        answers = (await self.kafka.commit(KafkaCall(connection, BY_ID - 1, "tests", None), request)).topics
        return {each.error_code for answer in answers for each in answer.partitions}

    async def committed(self) -> dict[TopicId, int]:
        """The committed offset of partition 0 of each life of the topic."""
        found = (await read_offsets(self.cluster.etcd, LAYOUT, "g")).committed
        return {at.topic_id: offset.offset for at, offset in found.items() if at.partition == 0}

    async def begin(self) -> None:
        await self.topics.create("orders", 1)
        await self.follow()
        self.member, _ = await self.coordinator.stable(MEMBERS)


def with_site(scenario: Callable[[Site], Awaitable[None]]) -> None:
    async def main(cluster: Cluster) -> None:
        site = Site(cluster, await cluster.coordinator())
        await site.begin()
        try:
            await scenario(site)
        finally:
            await site.lag()

    with_cluster(main)


def test_a_commit_is_not_stored_for_a_topic_that_is_made_again_while_the_commit_is_on_its_way() -> None:
    async def scenario(site: Site) -> None:
        site.coordinator.link.before_transaction = site.made_again
        assert await site.commit(7) == {ErrorCode.NONE}
        assert await site.committed() == {(await site.topics.get("orders")).id: 7}

    with_site(scenario)


@pytest.mark.parametrize("times", range(2, GUARDED_COMMITS))
def test_nor_for_one_that_is_made_again_while_the_commit_is_repeated(times: int) -> None:
    async def scenario(site: Site) -> None:
        site.make_again_before(times)
        assert await site.commit(7) == {ErrorCode.NONE}
        assert await site.committed() == {(await site.topics.get("orders")).id: 7}

    with_site(scenario)


def test_a_commit_ends_though_the_topics_change_at_each_of_its_attempts() -> None:
    async def scenario(site: Site) -> None:
        async def changed() -> None:
            site.coordinator.link.before_transaction = changed
            await site.topics.create(f"t{virtual_loop().time()}", 1)

        site.coordinator.link.before_transaction = changed
        assert await site.commit(7) == {ErrorCode.NONE}
        assert site.reads.gets == GUARDED_COMMITS

    with_site(scenario)


def test_a_commit_that_also_names_a_refused_topic_is_guarded_and_reads_nothing() -> None:
    class OnlyOrders:
        """Stands for a call whose principal may use one topic."""

        changes = False

        def permits(self, kind: str, name: str) -> bool:
            return kind != "topic" or name == "orders"

        def check(self, kind: str, name: str) -> None:
            if not self.permits(kind, name):
                raise NotAuthorized(f"no right to use {name}")

    async def scenario(site: Site) -> None:
        refused = await site.topics.create("refused", 1)
        assert await site.cache.wait_for(refused.revision, 1)
        caller: Any = OnlyOrders()
        with acting(caller):
            assert await site.commit(6, more=("refused",)) == {ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            assert site.reads.gets == 0
            site.coordinator.link.before_transaction = site.made_again
            await site.commit(7, more=("refused",))
        assert (await site.committed())[(await site.topics.get("orders")).id] == 7

    with_site(scenario)


def test_a_commit_of_a_topic_that_was_made_a_moment_ago_waits_for_the_view() -> None:
    async def scenario(site: Site) -> None:
        await site.lag()
        made = await site.topics.create("new", 1)
        committing = asyncio.ensure_future(site.commit(7, topic="new"))
        await asyncio.sleep(2 * LOOKUP_S)
        await site.follow()
        assert await committing == {ErrorCode.NONE}
        assert await site.committed() == {made.id: 7}

    with_site(scenario)


def test_the_first_attempt_of_a_commit_looks_up_no_topic_that_the_view_lacks() -> None:
    async def scenario(site: Site) -> None:
        async def silent(name: str) -> Any:
            await asyncio.sleep(2 * LOOKUP_S)

        await site.lag()
        await site.topics.create("new", 1)
        site.topics.get = silent  # type: ignore[method-assign]  # a double
        committing = asyncio.ensure_future(site.commit(7, topic="new"))
        await asyncio.sleep(0)
        await site.follow()
        assert await committing == {ErrorCode.NONE}
        assert virtual_loop().time() < LOOKUP_S

    with_site(scenario)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "at another broker"])
def test_a_guarded_commit_never_waits_for_a_partition_that_the_view_lacks(elsewhere: bool) -> None:
    async def scenario(site: Site) -> None:
        await site.lag()
        made = await site.topics.create("new", 1)
        site.elsewhere = object() if elsewhere else None
        offsets = {TopicPartition(made.id, Partition(0)): CommittedOffset(offset=7, committed_at_ms=0)}
        began_s = virtual_loop().time()
        with pytest.raises(Outdated):
            await site.router.commit("g", NO_MEMBER, NO_INSTANCE, NO_GENERATION, offsets, view=site.cache.view)
        assert virtual_loop().time() == began_s
        assert await site.committed() == {}
        await site.follow()

    with_site(scenario)


def test_a_commit_of_a_topic_that_does_not_exist_reads_the_store_once_for_the_topics() -> None:
    async def scenario(site: Site) -> None:
        assert await site.commit(7, topic="none") == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert site.reads.gets == 1

    with_site(scenario)


@pytest.mark.parametrize("hears", [True, False])
def test_a_commit_is_not_stored_for_a_former_topic_that_the_view_still_has(hears: bool) -> None:
    async def scenario(site: Site) -> None:
        await site.lag()
        await site.made_again()
        committing = asyncio.ensure_future(site.commit(7))
        began_s = virtual_loop().time()
        await asyncio.sleep(1)
        assert await site.committed() == {}
        if hears:
            await site.follow()
        assert await committing == {ErrorCode.NONE if hears else ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert await site.committed() == ({(await site.topics.get("orders")).id: 7} if hears else {})
        assert virtual_loop().time() <= began_s + COMMIT_CATCH_UP_S + 0.1
        if not hears:
            await site.follow()

    with_site(scenario)


def test_a_commit_of_a_topic_that_was_deleted_meanwhile_is_refused() -> None:
    async def scenario(site: Site) -> None:
        async def deleted() -> None:
            await site.topics.delete("orders")

        site.coordinator.link.before_transaction = deleted
        assert await site.commit(7) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert await site.committed() == {}

    with_site(scenario)


def test_a_partition_that_was_added_a_moment_ago_is_committed() -> None:
    async def scenario(site: Site) -> None:
        await site.lag()
        await site.topics.alter("orders", partition_count=2)
        committing = asyncio.ensure_future(site.commit(7, partitions=2))
        await asyncio.sleep(1)
        await site.follow()
        assert await committing == {ErrorCode.NONE}

    with_site(scenario)


def test_commits_at_a_current_view_read_nothing_from_the_store() -> None:
    async def scenario(site: Site) -> None:
        gets = site.coordinator.link.gets
        for offset in range(3):
            assert await site.commit(offset) == {ErrorCode.NONE}
        assert site.reads.gets == 0
        assert site.coordinator.link.gets == gets
        assert virtual_loop().time() < COMMIT_CATCH_UP_S

    with_site(scenario)


def test_a_commit_of_more_partitions_than_a_transaction_has_goes_to_the_topic_that_was_made_again() -> None:
    async def scenario(site: Site) -> None:
        await site.lag()
        await site.topics.delete("orders")
        made = await site.topics.create("orders", OPERATIONS_MAX + 1)
        committing = asyncio.ensure_future(site.commit(7, partitions=OPERATIONS_MAX + 1))
        await asyncio.sleep(1)
        await site.follow()
        assert await committing == {ErrorCode.NONE}
        committed = (await read_offsets(site.cluster.etcd, LAYOUT, "g")).committed
        assert set(committed) == {TopicPartition(made.id, Partition(number)) for number in range(OPERATIONS_MAX + 1)}

    with_site(scenario)


@pytest.mark.parametrize("outdated", [True, False])
def test_a_fenced_coordinator_commits_nothing_whatever_its_view_of_the_topics(outdated: bool) -> None:
    async def scenario(site: Site) -> None:
        after = await site.cluster.coordinator()
        await after.heartbeat(site.member, 1)  # loads the group, and so fences the former coordinator
        if outdated:
            site.coordinator.link.before_transaction = site.made_again
        assert await site.commit(7) == {ErrorCode.NOT_COORDINATOR}
        assert await site.committed() == {}
        assert not site.coordinator.groups.is_loaded("g")

    with_site(scenario)


def test_an_outdated_view_costs_a_coordinator_no_group_and_refuses_no_other_commit() -> None:
    async def scenario(site: Site) -> None:
        commits = [asyncio.ensure_future(site.commit(offset)) for offset in range(5)]
        other = asyncio.ensure_future(site.coordinator.commit(3, group="other"))
        site.coordinator.link.before_transaction = site.made_again
        assert [await each for each in commits] == [{ErrorCode.NONE}] * 5
        assert await other == {}
        assert site.coordinator.groups.is_loaded("g")
        await site.coordinator.heartbeat(site.member, 1)

    with_site(scenario)


def test_a_commit_of_an_old_generation_is_refused_before_and_after_the_view_catches_up() -> None:
    async def scenario(site: Site) -> None:
        assert await site.commit(7, generation=0) == {ILLEGAL_GENERATION}
        site.coordinator.link.before_transaction = site.made_again
        assert await site.commit(7, member="who") == {UNKNOWN_MEMBER_ID}
        assert await site.committed() == {}

    with_site(scenario)
