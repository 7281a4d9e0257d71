"""The metadata are lost, all of them, and rebuilt from the bucket: nothing that was acknowledged is lost with them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from gateway.cluster.identity import identify_cluster
from gateway.cluster.session_opener import SessionOpener
from gateway.cluster.settings import ClusterSettings
from gateway.cluster.view import partitions_of
from gateway.controller.metadata_snapshots import take_snapshot
from metadata.backup.restore_state import RestoreState, encode_restoring
from metadata.cluster.id_allocation import IDS_PER_SESSION, next_session
from metadata.controller.appointments import Progress, decode_batch, decode_progress, encode_progress
from metadata.errors import AlreadyExists, Fenced, Rejected, SessionFenced, Unavailable
from metadata.model import Offset, Partition, Revision, TopicId, TopicPartition
from metadata.store.etcd.settings import EtcdSettings
from metadata.store.interface import Compare, Delete, MetadataStore, Operation, Put, TransactionResult
from metadata.store.open import open_metadata
from metadata.topics.topic import Topic
from segments.bucket.layout import (
    APPOINTMENTS,
    SNAPSHOTS,
    TOPICS,
    WAL,
    SnapshotPosition,
    appointments_key,
    history_file_key,
    manifest_key,
    parse_appointments_key,
    snapshot_key,
    topic_mirror_key,
)
from segments.bucket.topic_catalog import incarnations
from segments.history.manifest import encode_manifest
from segments.object_store.interface import ListPage, list_all
from segments.object_store.memory import MemoryObjectStore
from segments.wal.segment_file import SEAL_BYTES
from tests.kit import etcd_server
from tests.kit.gateway.listenerless_cluster import (
    CLUSTER_ID,
    LAYOUT,
    READY_S,
    Acknowledged,
    Broker,
    cluster_of,
    epochs,
    now_ms,
    until,
)
from tests.kit.metadata.faulty_store import FaultyStore
from tests.kit.segments.batches import ORDERS, header_of, sequenced_batch
from tests.kit.segments.manifests import compacted_to, file_of, remembered
from tests.kit.segments.scripted_store import ScriptedStore
from tidelog.bucket.restore import restore_cluster
from tidelog.bucket.restore_evidence import read_evidence
from tidelog.bucket.restore_plan import RestoredTopic, RestorePlan, transactions
from tidelog.bucket.unnamed_files import unnamed_files

GROUP = f"{LAYOUT.root}groups/billing"


class OpenMetadata(Protocol):
    def __call__(self, directory: Path) -> AbstractAsyncContextManager[MetadataStore]: ...


@asynccontextmanager
async def sqlite(directory: Path) -> AsyncIterator[MetadataStore]:
    os.mkdir(directory)
    async with open_metadata(EtcdSettings(), directory / "metadata.sqlite", prefix=LAYOUT.root) as store:
        yield store


@asynccontextmanager
async def etcd(directory: Path) -> AsyncIterator[MetadataStore]:
    """A new etcd, which counts its revisions from 1."""
    os.mkdir(directory)
    with etcd_server.running_etcd(directory) as member:
        async with open_metadata(etcd_server.settings(member.url), directory, prefix=LAYOUT.root) as store:
            yield store


@pytest.mark.slow
@pytest.mark.parametrize("new_metadata", [sqlite, etcd])
def test_a_cluster_whose_metadata_were_wiped_goes_on_where_it_was(new_metadata: OpenMetadata, tmp_path: Path) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        reported = Acknowledged()
        async with new_metadata(tmp_path / "lost") as lost, cluster_of(bucket, lost, ["b1", "b2"], killed=True) as cluster:
            orders, gone = await cluster.create("orders", 4), await cluster.create("gone", 2)
            ids = [broker.session * IDS_PER_SESSION for broker in cluster.brokers]
            await reported.produce(cluster, [orders, gone], producer_ids=ids, rounds=3)
            await lost.transact([], [Put(GROUP, b"generation 7")])
            await take_snapshot(bucket, lost, LAYOUT, now_ms=now_ms)
            await cluster.topics.delete("gone")
            late = await cluster.create("late", 2)
            orders = await cluster.topics.alter("orders", settings={"retention.ms": "7"}, partition_count=5)
            await cluster.until_led(orders)
            await reported.produce(cluster, [orders, late], producer_ids=ids, rounds=6)
            reported.records = {p: held for p, held in reported.records.items() if p.topic_id != gone.id}
            epochs_before = epochs(await cluster.states())
            sessions_before = {broker.session for broker in cluster.brokers}

        async with new_metadata(tmp_path / "empty") as empty:
            with pytest.raises(Rejected, match=f"belongs to cluster {CLUSTER_ID}, but the metadata under /tidelog/ are empty"):
                async with cluster_of(bucket, empty, ["b1"]):
                    pytest.fail("a broker has started on metadata that were lost")
            restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)
            assert (restored.written, restored.findings) == (True, [])
            assert restored.plan.records == sum(map(len, reported.records.values()))
            async with cluster_of(bucket, empty, ["b1", "b2"]) as cluster:
                topics = {topic.name: topic for topic in (await cluster.topics.list()).topics}
                assert sorted(topics) == ["late", "orders"]
                assert topics["orders"].settings == {"retention.ms": "7"}
                await cluster.until_led(*topics.values())
                await reported.check(cluster)
                epochs_after = epochs(await cluster.states())
                assert all(
                    epochs_after[partition] > epoch for partition, epoch in epochs_before.items() if partition in epochs_after
                )
                assert epochs_after.keys() == reported.records.keys()
                assert min(broker.session for broker in cluster.brokers) > max(sessions_before)
                for (partition, producer_id), next_sequence in reported.sequences.items():
                    if partition in reported.records:
                        repeated = await cluster.produce(partition, producer_id, next_sequence - 1)
                        assert reported.records[partition][repeated] == f"p{producer_id}-s{next_sequence - 1}".encode()
                await reported.produce(cluster, topics.values(), producer_ids=ids, rounds=2)
                new_id = cluster.brokers[0].session * IDS_PER_SESSION
                assert new_id > max(ids)
                await reported.produce(cluster, topics.values(), producer_ids=[new_id], rounds=1)
                await reported.check(cluster)
                group = await empty.get(GROUP)
                assert group is not None
                assert group.value == b"generation 7"

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("new_metadata", [sqlite, etcd])
def test_brokers_that_still_run_are_fenced_by_the_restore(new_metadata: OpenMetadata, tmp_path: Path) -> None:
    """The metadata were only out of reach, and the old brokers know nothing of the restore: what they acknowledge before the seal
    counts, and no more. They begin no other session, and end."""

    async def main() -> None:
        bucket = MemoryObjectStore()
        reported = Acknowledged()
        orders: Topic
        async with new_metadata(tmp_path / "lost") as lost, new_metadata(tmp_path / "empty") as empty:

            async def old_cluster() -> None:
                nonlocal orders
                async with cluster_of(bucket, lost, ["b1"], killed=True) as old:
                    orders = await old.create("orders", 2)
                    await reported.produce(old, [orders], producer_ids=[7], rounds=3)
                    zombie = old.brokers[0].leadership.log
                    restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)
                    assert restored.found.sealed_now == 1
                    batch = sequenced_batch(7, 3)
                    with pytest.raises(SessionFenced):
                        await zombie.produce(partitions_of(orders)[0], batch, header_of(batch))
                    await asyncio.sleep(READY_S)  # it ends by itself, long before

            with pytest.raises(BaseExceptionGroup) as ended:
                await old_cluster()
            assert ended.group_contains(Rejected, match="were rebuilt from it meanwhile")
            async with cluster_of(bucket, empty, ["b2"]) as new:
                await new.until_led(*(await new.topics.list()).topics)
                await reported.check(new)
                await reported.produce(new, [orders], producer_ids=[7], rounds=2)
                await reported.check(new)

    asyncio.run(main())


@pytest.mark.slow
def test_a_change_after_a_restore_survives_the_next_one(tmp_path: Path) -> None:
    """The new etcd counts from 1 again, and yet what it writes to the bucket is newer than all that lies there."""

    async def main() -> None:
        bucket = MemoryObjectStore()
        reported = Acknowledged()
        async with sqlite(tmp_path / "first") as first:
            for _ in range(50):
                await first.transact([], [Put("/other/key", b"")])
            async with cluster_of(bucket, first, ["b1"]) as cluster:
                orders = await cluster.create("orders", 1)
                await cluster.create("gone", 1)
                await reported.produce(cluster, [orders], producer_ids=[1], rounds=1)
        async with sqlite(tmp_path / "second") as second:
            await restore_cluster(bucket, second, LAYOUT, now_ms=now_ms)
            async with cluster_of(bucket, second, ["b1"], killed=True) as cluster:
                await cluster.until_led(*(await cluster.topics.list()).topics)
                orders = await cluster.topics.alter("orders", settings={"retention.ms": "9"}, partition_count=2)
                await cluster.topics.delete("gone")
                await cluster.until_led(orders)
                await reported.produce(cluster, [orders], producer_ids=[1], rounds=2)
                epochs_before = epochs(await cluster.states())

                async def forgotten() -> bool:
                    return len(await cluster.states()) == 2

                await until(forgotten)
        async with sqlite(tmp_path / "third") as third:
            restored = await restore_cluster(bucket, third, LAYOUT, now_ms=now_ms)
            assert restored.findings == []
            assert [(found.topic.name, found.topic.settings) for found in restored.plan.topics] == [
                ("orders", {"retention.ms": "9"})
            ]
            async with cluster_of(bucket, third, ["b1"]) as cluster:
                await cluster.until_led(*(await cluster.topics.list()).topics)
                await reported.check(cluster)
                assert all(epoch > epochs_before[partition] for partition, epoch in epochs(await cluster.states()).items())

    asyncio.run(main())


# ── what it refuses, and how it goes on ──


def test_of_two_restores_into_different_stores_the_one_that_began_first_does_not_finish(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost")
        async with sqlite(tmp_path / "first") as first, sqlite(tmp_path / "second") as second:
            faulty = FaultyStore(first)

            async def begin_another() -> None:
                assert (await restore_cluster(bucket, second, LAYOUT, now_ms=now_ms)).written

            faulty.before_transaction = begin_another
            with pytest.raises(Fenced, match="another restore from this bucket has begun"):
                await restore_cluster(bucket, faulty, LAYOUT, now_ms=now_ms)
            with pytest.raises(Rejected, match="being restored"):
                await identify_cluster(bucket, first, LAYOUT, new_id=CLUSTER_ID, now_ms=now_ms())
            assert (await contents(second))[LAYOUT.cluster_id] == CLUSTER_ID.encode()

    asyncio.run(main())


def test_without_a_snapshot_topics_come_from_their_mirrors_and_groups_are_gone(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        reported = Acknowledged()
        async with sqlite(tmp_path / "lost") as lost, cluster_of(bucket, lost, ["b1"], killed=True) as cluster:
            orders = await cluster.create("orders", 2)
            await reported.produce(cluster, [orders], producer_ids=[1], rounds=2)
            await lost.transact([], [Put(GROUP, b"generation 7")])
        for key in [found.key async for found in list_all(bucket, SNAPSHOTS)]:
            await bucket.delete(key)
        async with sqlite(tmp_path / "empty") as empty:
            restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)
            assert (restored.written, restored.findings, restored.plan.copied) == (True, [], 0)
            assert await empty.get(GROUP) is None
            async with cluster_of(bucket, empty, ["b1"]) as cluster:
                await cluster.until_led(*(await cluster.topics.list()).topics)
                await reported.check(cluster)

    asyncio.run(main())


def test_a_snapshot_that_another_cluster_has_left_on_the_bucket_is_not_used(tmp_path: Path) -> None:
    async def main() -> None:
        bucket, other = await small_bucket(tmp_path / "lost"), MemoryObjectStore()
        async with sqlite(tmp_path / "other") as metadata:
            await metadata.transact([], [Put(LAYOUT.cluster_id, b"another"), Put(GROUP, b"of the other"), Put("/far", b"")])
            await metadata.transact([], [Put(LAYOUT.appointments, encode_progress(Progress(500)))])  # so that it is the newest
            await take_snapshot(other, metadata, LAYOUT, now_ms=now_ms)
        (left,) = [found.key async for found in list_all(other, SNAPSHOTS)]
        await bucket.create(left, [await other.get(left)])
        async with sqlite(tmp_path / "empty") as empty:
            restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)
            assert restored.written
            assert [(found.severity, found.where) for found in restored.findings] == [("note", left)]
            assert await empty.get(GROUP) is None
            assert [found.topic.name for found in restored.plan.topics] == ["topic-0"]

    asyncio.run(main())


async def small_bucket(directory: Path, *, topics: int = 1) -> MemoryObjectStore:
    """Of a cluster that has some topics of one partition, each with a record; all brokers stopped in order."""
    bucket = MemoryObjectStore()
    reported = Acknowledged()
    async with sqlite(directory) as metadata, cluster_of(bucket, metadata, ["b1"]) as cluster:
        made = [await cluster.create(f"topic-{number}") for number in range(topics)]
        await reported.produce(cluster, made, producer_ids=[1], rounds=1)
    return bucket


async def contents(metadata: MetadataStore) -> dict[str, bytes]:
    """But for the number of the restore, which is another one each time."""
    numbers = {LAYOUT.restoration, LAYOUT.appointments}
    return {item.key: item.value for item in (await metadata.range(LAYOUT.root)).items if item.key not in numbers}


def test_metadata_that_hold_a_cluster_are_never_written_over(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost")
        async with sqlite(tmp_path / "used") as used:
            await used.transact(
                [], [Put(LAYOUT.cluster_id, b"another"), Put(LAYOUT.topic("a"), b"{}"), Put(LAYOUT.topic("b"), b"{}")]
            )
            before = await contents(used)
            with pytest.raises(Rejected, match=r"are not empty: cluster_id \(1\), topics \(2\)"):
                await restore_cluster(bucket, used, LAYOUT, now_ms=now_ms)
            assert await contents(used) == before

    asyncio.run(main())


def test_while_brokers_run_on_the_new_metadata_there_is_no_restore(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost")
        async with sqlite(tmp_path / "used") as used:
            lease = await used.grant_lease(60)
            await used.transact([], [Put(LAYOUT.controller, b"b1 1", lease)])
            with pytest.raises(Rejected, match="brokers are running on these metadata: /tidelog/controller"):
                await restore_cluster(bucket, used, LAYOUT, now_ms=now_ms)

    asyncio.run(main())


def test_numbers_that_a_broker_has_taken_from_the_new_metadata_are_taken_into_account(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost")
        async with sqlite(tmp_path / "empty") as empty:
            await empty.transact([], [Put(LAYOUT.next_session, b"5000000")])
            restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)
            assert restored.plan.next_session == 5_000_000

    asyncio.run(main())


def test_a_broker_begins_a_session_after_a_restore_though_another_had_taken_a_number_from_the_empty_metadata(
    tmp_path: Path,
) -> None:
    """The number is that of an old session on the bucket, which has another claim and has written."""

    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost")
        async with sqlite(tmp_path / "empty") as empty:
            assert await next_session(empty, LAYOUT, writer=bytes(16)) == 1
            restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)
            assert (await empty.range(LAYOUT.beginning)).items == ()
            claims = SessionOpener(bucket, empty, LAYOUT, broker_id="b1", new_writer=lambda: bytes(16), now_ms=now_ms)
            assert (await claims.next()).id == restored.plan.next_session

    asyncio.run(main())


def test_a_bucket_without_a_cluster_is_not_restored(tmp_path: Path) -> None:
    async def main() -> None:
        async with sqlite(tmp_path / "empty") as empty:
            with pytest.raises(Rejected, match="it has no cluster"):
                await restore_cluster(MemoryObjectStore(), empty, LAYOUT, now_ms=now_ms)
            assert await contents(empty) == {}

    asyncio.run(main())


def test_a_dry_run_seals_nothing_and_writes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        async with sqlite(tmp_path / "lost") as lost, cluster_of(bucket, lost, ["b1"], killed=True) as cluster:
            await Acknowledged().produce(cluster, [await cluster.create("orders")], producer_ids=[1], rounds=1)
        before = {found.key async for found in list_all(bucket, "")}
        async with sqlite(tmp_path / "empty") as empty:
            restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms, dry_run=True)
            assert (restored.written, restored.plan.records, restored.found.sealed_now) == (False, 1, 1)
            assert await contents(empty) == {}
        assert {found.key async for found in list_all(bucket, "")} == before

    asyncio.run(main())


@pytest.mark.slow
def test_a_restore_that_was_interrupted_anywhere_goes_on_to_the_same_end(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost", topics=70)
        async with sqlite(tmp_path / "whole") as whole:
            restored = await restore_cluster(bucket, whole, LAYOUT, now_ms=now_ms)
            expected = await contents(whole)
        assert restored.written
        steps = 1 + len(list(transactions(restored.plan.puts))) + 1
        assert steps > 3
        for completed in range(steps):
            async with sqlite(tmp_path / f"after-{completed}") as metadata:
                stops = StopsAfter(metadata, completed)
                with pytest.raises(Unavailable):
                    await restore_cluster(bucket, stops, LAYOUT, now_ms=now_ms)
                if completed:
                    with pytest.raises(Rejected, match="being restored"):
                        await identify_cluster(bucket, metadata, LAYOUT, new_id=CLUSTER_ID, now_ms=now_ms())
                await restore_cluster(bucket, metadata, LAYOUT, now_ms=now_ms)
                assert await contents(metadata) == expected

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lose_answers", "lose_requests"])
def test_answers_that_get_lost_do_a_restore_no_harm(fault: str, tmp_path: Path) -> None:
    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost")
        async with sqlite(tmp_path / "whole") as whole:
            await restore_cluster(bucket, whole, LAYOUT, now_ms=now_ms)
            expected = await contents(whole)
        for step in range(3):
            async with sqlite(tmp_path / f"step-{step}") as metadata:
                faulty = FaultyAt(metadata, step, fault)
                assert (await restore_cluster(bucket, faulty, LAYOUT, now_ms=now_ms)).written
                assert await contents(metadata) == expected

    asyncio.run(main())


def test_a_restore_writes_an_empty_batch_under_the_next_appointment_number(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost")
        before = [parse_appointments_key(found.key) async for found in list_all(bucket, APPOINTMENTS)]
        assert before, "the topic's leader was appointed"
        async with sqlite(tmp_path / "empty") as empty:
            assert (await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)).written
            progress = decode_progress(await empty.get(LAYOUT.appointments), key=LAYOUT.appointments)
        after = [parse_appointments_key(found.key) async for found in list_all(bucket, APPOINTMENTS)]
        assert after == [*before, progress.number]
        key = appointments_key(progress.number)
        assert decode_batch(await bucket.get(key), number=progress.number, key=key).appointments == ()

    asyncio.run(main())


def test_snapshots_that_follow_a_restore_stand_behind_all_that_are_there_though_the_batches_are_gone(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost")
        left = snapshot_key(SnapshotPosition(500, Revision(1)))
        await bucket.create(left, [b"damaged"])
        async with sqlite(tmp_path / "empty") as empty:
            await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)
            position = await take_snapshot(bucket, empty, LAYOUT, now_ms=now_ms)
            assert position is not None
            assert position.number == 501

    asyncio.run(main())


def test_of_two_restores_at_once_the_one_that_began_first_stops(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost")
        async with sqlite(tmp_path / "empty") as empty:
            faulty = FaultyStore(empty)

            async def begin_another() -> None:
                faulty.before_transaction = lambda: restore_cluster(bucket, empty, LAYOUT, now_ms=lambda: now_ms() + 1)

            faulty.before_transaction = begin_another
            with pytest.raises(Fenced):
                await restore_cluster(bucket, faulty, LAYOUT, now_ms=now_ms)
            assert (await contents(empty))[LAYOUT.cluster_id] == CLUSTER_ID.encode()

    asyncio.run(main())


def test_no_broker_becomes_controller_of_a_partially_restored_cluster(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that was running when the metadata were lost is none either, though nothing else holds it back."""

    async def main() -> None:
        bucket = MemoryObjectStore()
        async with sqlite(tmp_path / "metadata") as metadata:
            await metadata.transact([], [Put(LAYOUT.restoring, encode_restoring(RestoreState(CLUSTER_ID, 0)))])
            broker = Broker(bucket, metadata, "b1", ClusterSettings())
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(broker.view.run()), tasks.create_task(broker.leadership.run())]
                await broker.view.brokers.wait_for(Revision(2), timeout_s=READY_S)
                async with asyncio.timeout(READY_S):
                    while "being restored" not in caplog.text:  # noqa: ASYNC110  # only the log says it
                        await asyncio.sleep(0.01)
                assert await metadata.get(LAYOUT.controller) is None
                await metadata.transact([], [Delete(LAYOUT.restoring)])

                async def elected() -> bool:
                    return await metadata.get(LAYOUT.controller) is not None

                await until(elected)
                broker.leadership.stop()
                await asyncio.wait(running[1:])
                running[0].cancel()

    asyncio.run(main())


def test_a_segment_that_cannot_be_read_stops_the_restore_unless_it_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost")
        (key,) = [found.key async for found in list_all(bucket, WAL) if found.size > SEAL_BYTES and "claim" not in found.key]
        body = bytearray(await bucket.get(key))
        body[-20] ^= 1
        await bucket.delete(key)
        await bucket.create(key, [body])
        async with sqlite(tmp_path / "empty") as empty:
            restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)
            assert not restored.written
            assert [finding.where for finding in restored.damage] == [key]
            assert await contents(empty) == {}
            assert (await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms, despite_damage=True)).written

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_snapshot_gives_way_to_the_one_before_it(damaged: int, tmp_path: Path) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        async with sqlite(tmp_path / "lost") as lost, cluster_of(bucket, lost, ["b1"], killed=True) as cluster:
            await cluster.create("orders")
            for _ in range(2):
                await lost.transact([], [Put(GROUP, b"generation 7")])
                await take_snapshot(bucket, lost, LAYOUT, now_ms=now_ms)
        snapshots = [found.key async for found in list_all(bucket, SNAPSHOTS)]
        for key in snapshots[-damaged:]:
            body = bytearray(await bucket.get(key))
            body[len(body) // 2] ^= 1
            await bucket.delete(key)
            await bucket.create(key, [body])
        async with sqlite(tmp_path / "empty") as empty:
            restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)
            assert restored.written
            assert len(restored.damage) == damaged
            assert [found.topic.name for found in restored.plan.topics] == ["orders"]
            node_id = LAYOUT.kafka_node_id("b1") in {put.key for put in restored.plan.puts}
            assert node_id == (damaged == 1)
            assert restored.plan.copied - node_id == (damaged == 1), "the group"

    asyncio.run(main())


class StopsAfter(FaultyStore):
    """Takes so many transactions, and none after them."""

    def __init__(self, store: MetadataStore, transactions_max: int) -> None:
        super().__init__(store)
        self._left = transactions_max

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        if not self._left:
            raise Unavailable("the store is down")
        self._left -= 1
        return await super().transact(compares, operations)


class FaultyAt(FaultyStore):
    """One transaction meets a fault."""

    def __init__(self, store: MetadataStore, step: int, fault: str) -> None:
        super().__init__(store)
        self._step = step
        self._fault = fault

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        if self._step == 0:
            setattr(self, self._fault, 1)
        self._step -= 1
        return await super().transact(compares, operations)


def test_records_that_were_compacted_and_trimmed_are_known_after_a_restore_and_go_on(tmp_path: Path) -> None:
    """Of one partition some is compacted and trimmed, of another all; a third was never compacted."""

    async def main() -> None:
        bucket = MemoryObjectStore()
        async with sqlite(tmp_path / "lost") as lost, cluster_of(bucket, lost, ["b1"], killed=True) as cluster:
            orders = await cluster.create("orders", 3)
            producer_id = cluster.brokers[0].session * IDS_PER_SESSION
            partitions = partitions_of(orders)
            for sequence in range(8):
                for partition in partitions:
                    await cluster.produce(partition, producer_id, sequence)
            await take_snapshot(bucket, lost, LAYOUT, now_ms=now_ms)
            [broker] = cluster.brokers
            session = broker.session
        for partition, end, epoch in zip(partitions, (8, 5, 0), (3, 0, 0), strict=True):
            if end:
                producers = remembered(end, producer_id=producer_id)
                history = compacted_to(end, partition=partition, epochs=[(epoch, 0)], producers=producers, with_file=False)
                history = msgspec.structs.replace(history, log_start_offset=Offset(end))
                await bucket.create(manifest_key("orders", partition, 1), [encode_manifest(history)])
        async with sqlite(tmp_path / "empty") as empty:
            restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)
            assert (restored.written, restored.findings) == (True, [])
            assert restored.plan.records == 0 + 3 + 8
            assert restored.plan.leader_epoch_max > 3
            async with cluster_of(bucket, empty, ["b1"]) as cluster:
                await cluster.until_led((await cluster.topics.list()).topics[0])
                for partition, start in zip(partitions, (8, 5, 0), strict=True):
                    assert cluster.leader(partition).leadership.log.partitions.bounds(partition)[:2] == (start, 8)
                    assert await cluster.produce(partition, producer_id, 7) == 7, "a repeat"
                    assert await cluster.produce(partition, producer_id, 8) == 8
        assert session < restored.plan.next_session

    asyncio.run(main())


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_whose_manifest_is_missing_stops_the_restore_unless_its_records_are_given_up(tmp_path: Path, version: int) -> None:
    """Brokers would refuse the partition. The segments of its records may be trimmed, so its end is not known."""

    async def main() -> None:
        bucket = await small_bucket(tmp_path / "lost")
        [named] = [one async for one in incarnations(bucket)]
        partition = TopicPartition(named.topic_id, Partition(0))
        if version > 1:
            older = compacted_to(1, partition=partition, with_file=False)
            older = msgspec.structs.replace(older, log_start_offset=Offset(1))
            await bucket.create(manifest_key(named.name, partition, 1), [encode_manifest(older)])
        key = history_file_key(named.name, partition, file_of(1, 9_999, version=version).name)
        await bucket.create(key, [b"parquet"])
        async with sqlite(tmp_path / "empty") as empty:
            for dry_run in (True, False):
                restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms, dry_run=dry_run)
                assert not restored.written
                assert [finding.where for finding in restored.damage] == [finding.where for finding in restored.lost] == [key]
                assert f"manifests of {partition} were deleted, or not copied" in restored.damage[0].what
            assert await contents(empty) == {}
            assert (await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms, despite_damage=True)).written

    asyncio.run(main())


def test_a_file_that_a_compactor_is_about_to_name_does_not_stop_a_restore() -> None:
    async def main() -> None:
        topic = Topic(id=ORDERS.topic_id, name="orders", partition_count=1, settings={}, created_at_ms=0)
        manifest = compacted_to(10)

        class Compacting(MemoryObjectStore):
            """The manifest is created as soon as its file was listed."""

            async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
                page = await super().list(prefix, start_after=start_after, limit=limit)
                with suppress(AlreadyExists):
                    await self.create(manifest_key("orders", ORDERS, 1), [encode_manifest(manifest)])
                return page

        for bucket, count in ((Compacting(), 0), (MemoryObjectStore(), 1)):
            await bucket.create(history_file_key("orders", ORDERS, manifest.files[0].name), [b"parquet"])
            plan = RestorePlan(topics=[RestoredTopic(topic, "mirror", 0)], ends={ORDERS: 3})
            assert len(await unnamed_files(bucket, plan, {})) == count

    asyncio.run(main())


def test_files_of_history_are_stepped_over_by_who_looks_for_topics_and_manifests() -> None:
    async def main() -> None:
        bucket = ScriptedStore()
        topics = [TopicId(f"{number:032x}") for number in range(3)]
        for name, topic_id in zip(("a", "b", "c"), topics, strict=True):
            partition = TopicPartition(topic_id, Partition(0))
            bucket.plant(topic_mirror_key(name, topic_id, Revision(5)), b"{}")
            bucket.plant(manifest_key(name, partition, 1), encode_manifest(compacted_to(9, partition=partition)))
            for base in range(0, 30_000, 10):
                bucket.plant(history_file_key(name, partition, file_of(base, base + 9).name), b"")
        how = {"now_ms": now_ms, "dry_run": True, "advance": lambda *_: None}
        found = await read_evidence(bucket, CLUSTER_ID, LAYOUT, **how)  # type: ignore[arg-type]
        assert sorted(found.evidence.manifests) == [TopicPartition(topic_id, Partition(0)) for topic_id in topics]
        assert len(found.evidence.mirrors) == 3
        assert bucket.count("list", TOPICS) == 4, "of the 9,006 objects, a page for each topic"

    asyncio.run(main())
