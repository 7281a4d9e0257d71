"""One broker leads every partition: from one session to the next, over restarts, and in step with the topics."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from gateway.cluster.session_manager import IDLE_SEAL_CHECK_S, SEAL_CHECK_S, SessionManager
from gateway.cluster.settings import ClusterSettings
from gateway.cluster.takeover import Takeover
from gateway.cluster.view import ClusterView
from metadata.cluster import leadership as partition_assignments
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.cluster.leadership import SessionSpan
from metadata.errors import Corrupt, NoLeader, Rejected, SessionFenced, Stopping
from metadata.model import LeaderEpoch, Partition, SegmentSeq, SessionId, TopicPartition
from metadata.store.interface import Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic
from segments.bucket.layout import segment_key
from segments.log.session_log import FetchTarget
from segments.object_store.health_tracking import HealthTrackingObjectStore
from segments.object_store.memory import MemoryObjectStore
from segments.read.log_reader import FetchResult
from segments.settings import SegmentSettings
from segments.wal.segment_file import SEAL_BYTES
from segments.wal.session import seal
from tests.kit.segments.batches import TIMESTAMP_MS, batch_of, header_of, records_in
from tests.simulation.virtual_loop import run as virtually

LAYOUT = KeyLayout()
READY_S = 60.0
_writers = itertools.count()


def now_ms() -> int:
    return TIMESTAMP_MS


class OneBroker:
    """The metadata, the topics and the leadership of one broker, on a bucket that outlives it."""

    def __init__(self, bucket: MemoryObjectStore, path: Path) -> None:
        self.bucket = bucket
        self.metadata = SqliteStore(path)
        self.view = ClusterView(self.metadata, LAYOUT)
        self.topics = TopicRegistry(self.metadata, LAYOUT)
        self.leadership = SessionManager(
            HealthTrackingObjectStore(bucket),
            self.metadata,
            self.view,
            SegmentSettings(linger_ms=0),
            ClusterSettings(),
            layout=LAYOUT,
            registration=BrokerRegistration(broker_id="broker-1", session=SessionId(0)),
            new_writer=lambda: next(_writers).to_bytes(16, "big"),
            now_ms=now_ms,
        )

    async def create(self, name: str, partitions: int = 1) -> Topic:
        topic = await self.topics.create(name, partitions)
        await self.view.topics.wait_for(topic.revision, timeout_s=READY_S)
        assert await self.leadership.led(topic, timeout_s=READY_S)
        return topic

    async def produce(self, partition: TopicPartition, *values: bytes) -> int:
        batch = batch_of(*values)
        return (await self.leadership.log.produce(partition, batch, header_of(batch))).base_offset

    async def read(self, partition: TopicPartition) -> list[bytes | None]:
        [fetched] = await self.leadership.log.reads.fetch([FetchTarget(partition, 0, 1 << 20)], bytes_max=1 << 20, bytes_min=0)
        if not isinstance(fetched, FetchResult):
            raise fetched
        return [value for _, value in records_in(fetched.batches)]


@asynccontextmanager
async def one_broker(bucket: MemoryObjectStore, path: Path, *, killed: bool = False) -> AsyncIterator[OneBroker]:
    """A broker that leads; ended cleanly, or, when `killed`, with no chance to flush or to seal."""
    broker = OneBroker(bucket, path)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(broker.view.run())
        leading = tasks.create_task(broker.leadership.run())
        await broker.view.read(timeout_s=READY_S)
        await broker.leadership.first_session(READY_S)
        try:
            yield broker
        finally:
            if not killed:
                broker.leadership.stop()
                await asyncio.wait((leading,))
            leading.cancel()
            following.cancel()
    await broker.metadata.close()


async def produce_when_led(broker: OneBroker, partition: TopicPartition, value: bytes) -> int:
    """Tries again while the broker is between two sessions, as a client would."""
    async with asyncio.timeout(READY_S):
        while True:
            try:
                return await broker.produce(partition, value)
            except (NoLeader, SessionFenced):
                await asyncio.sleep(0)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            if happened():
                return
            await asyncio.sleep(0)


def partition_of(topic: Topic, number: int = 0) -> TopicPartition:
    return TopicPartition(topic.id, Partition(number))


def test_a_topic_is_led_as_soon_as_it_is_made_and_grows(tmp_path: Path) -> None:
    async def main() -> None:
        async with one_broker(MemoryObjectStore(), tmp_path / "m") as broker:
            topic = await broker.create("orders", 2)
            assert await broker.produce(partition_of(topic, 1), b"a") == 0
            grown = await broker.topics.alter("orders", partition_count=3)
            assert await broker.leadership.led(grown, timeout_s=READY_S)
            assert await broker.produce(partition_of(topic, 2), b"b") == 0
            assert await broker.produce(partition_of(topic, 1), b"c") == 1

    asyncio.run(main())


def test_a_broker_is_ready_only_after_its_watch_has_seen_its_own_registration(tmp_path: Path) -> None:
    """Without topics there is nothing else to wait for: a client that asked at once would get an empty broker list."""

    async def main() -> None:
        async with one_broker(MemoryObjectStore(), tmp_path / "m") as broker:
            assert [found.session for found in broker.view.brokers.brokers.values()] == [broker.leadership.session]

    asyncio.run(main())


def test_a_request_during_a_takeover_waits_for_it_and_one_to_a_partition_led_elsewhere_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with one_broker(MemoryObjectStore(), tmp_path / "m") as broker:
            first = await broker.create("orders")
            may_serve = hold_takeovers(monkeypatch)
            topic = await broker.topics.create("payments", 2)
            appointed = [partition_of(topic, 0), partition_of(topic, 1)]
            await until(lambda: set(appointed) <= set(broker.view.partitions.led_by(broker.leadership.log.session.id)))
            waiting = asyncio.ensure_future(broker.leadership.await_takeover(appointed, timeout_s=READY_S))
            mixed = [*appointed, partition_of(first)]
            unknown = [TopicPartition(first.id, Partition(7))]
            for served in (mixed, unknown, []):
                await broker.leadership.await_takeover(served, timeout_s=READY_S)
            await broker.leadership.await_takeover(appointed, timeout_s=0.01)
            assert not waiting.done()
            may_serve.set()
            await waiting
            assert all(partition in broker.leadership.log.partitions for partition in appointed)

    asyncio.run(main())


def hold_takeovers(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Until it is set, no partition that is appointed to a broker of this process comes to be led."""
    may_serve, serve = asyncio.Event(), Takeover._serve

    async def held(takeover: Takeover, appointed: dict[TopicPartition, partition_assignments.PartitionState]) -> None:
        await may_serve.wait()
        await serve(takeover, appointed)

    monkeypatch.setattr(Takeover, "_serve", held)
    return may_serve


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_acknowledged_records_are_read_after_a_restart_and_offsets_go_on(tmp_path: Path, killed: bool) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        async with one_broker(bucket, tmp_path / "m", killed=killed) as broker:
            topic = await broker.create("orders")
            assert await broker.produce(partition_of(topic), b"a", b"b") == 0
        async with one_broker(bucket, tmp_path / "m") as broker:
            assert await broker.read(partition_of(topic)) == [b"a", b"b"]
            assert broker.leadership.log.partitions.bounds(partition_of(topic)).leader_epoch == 1
            assert await broker.produce(partition_of(topic), b"c") == 2
            assert await broker.read(partition_of(topic)) == [b"a", b"b", b"c"]

    asyncio.run(main())


def test_a_broker_that_was_sealed_opens_a_new_session_and_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        async with one_broker(bucket, tmp_path / "m") as broker:
            topic = await broker.create("orders")
            await broker.produce(partition_of(topic), b"a")
            fenced = broker.leadership.log
            await seal(bucket, fenced.session.id, by=None, now_ms=now_ms)
            with pytest.raises(SessionFenced, match="ended at segment 1"):
                await broker.produce(partition_of(topic), b"refused")
            assert await produce_when_led(broker, partition_of(topic), b"b") == 1
            assert broker.leadership.log is not fenced
            assert await broker.read(partition_of(topic)) == [b"a", b"b"]

    asyncio.run(main())


def test_a_clean_end_seals_the_session_so_that_nothing_is_left_to_fence(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        async with one_broker(bucket, tmp_path / "m") as broker:
            session = broker.leadership.session
            assert session is not None
        assert len(await bucket.get(segment_key(SessionId(session), SegmentSeq(0)))) == SEAL_BYTES
        with pytest.raises(Stopping):
            _ = broker.leadership.log

    asyncio.run(main())


def test_a_deleted_topic_is_no_longer_served_and_a_new_one_of_its_name_is_empty(tmp_path: Path) -> None:
    async def main() -> None:
        async with one_broker(MemoryObjectStore(), tmp_path / "m") as broker:
            old = await broker.create("orders")
            await broker.produce(partition_of(old), b"a")
            await broker.topics.delete("orders")
            new = await broker.create("orders")
            await until(lambda: partition_of(old) not in broker.leadership.log.partitions)
            with pytest.raises(NoLeader):
                await broker.produce(partition_of(old), b"b")
            assert await broker.read(partition_of(new)) == []
            assert await broker.produce(partition_of(new), b"c") == 0
            await until(lambda: set(broker.view.partitions.states) == {partition_of(new)})
            assert set(await partition_assignments.read_all(broker.metadata, LAYOUT)) == {partition_of(new)}

    asyncio.run(main())


def test_partitions_of_a_topic_that_was_deleted_while_no_broker_ran_are_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        async with one_broker(bucket, tmp_path / "m") as broker:
            await broker.create("orders", 3)
        metadata = SqliteStore(tmp_path / "m")
        await TopicRegistry(metadata, LAYOUT).delete("orders")
        await metadata.close()
        async with one_broker(bucket, tmp_path / "m") as broker:
            await until(lambda: not broker.view.partitions.states)
            assert await partition_assignments.read_all(broker.metadata, LAYOUT) == {}

    asyncio.run(main())


def test_a_partition_whose_segment_is_damaged_says_so_and_the_others_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        async with one_broker(bucket, tmp_path / "m") as broker:
            hurt, sound = await broker.create("hurt"), await broker.create("sound")
            await broker.produce(partition_of(hurt), b"a")
            session = broker.leadership.session
            assert session is not None
        async with one_broker(bucket, tmp_path / "m") as broker:
            await broker.produce(partition_of(sound), b"b")
        await damage(bucket, segment_key(SessionId(session), SegmentSeq(0)))
        async with one_broker(bucket, tmp_path / "m") as broker:
            with pytest.raises(Corrupt, match="does not match its CRC-32C"):
                await broker.produce(partition_of(hurt), b"c")
            assert await broker.read(partition_of(sound)) == [b"b"]

    asyncio.run(main())


async def damage(bucket: MemoryObjectStore, key: str) -> None:
    """Flips a bit of the footer."""
    body = bytearray(await bucket.get(key))
    body[-20] ^= 1
    await bucket.delete(key)
    await bucket.create(key, [body])


def test_a_broker_is_not_ready_once_its_session_has_ended(tmp_path: Path) -> None:
    """It said that it serves until the session was left, which waits for what it reads."""

    async def main() -> None:
        async with one_broker(MemoryObjectStore(), tmp_path / "m") as broker:
            leadership, session_log = broker.leadership, broker.leadership.log
            first = session_log.session.id
            assert leadership.serving
            await seal(broker.bucket, first, by=None, now_ms=now_ms)
            await session_log.writer.check_seal()
            assert (leadership.session, leadership.serving) == (first, False)
            await until(lambda: leadership.serving)
            assert leadership.session != first

    asyncio.run(main())


def test_an_idle_broker_learns_within_a_minute_that_its_session_was_sealed_though_its_lease_is_sure(tmp_path: Path) -> None:
    """A broker on another copy of the metadata seals it. Until then readers get what was known before."""

    async def main() -> None:
        bucket = MemoryObjectStore()
        async with one_broker(bucket, tmp_path / "m") as broker:
            topic = await broker.create("orders")
            await broker.produce(partition_of(topic), b"a")
            session = broker.leadership.session
            assert session is not None
            await seal(bucket, session, by=None, now_ms=now_ms)
            await asyncio.sleep(IDLE_SEAL_CHECK_S + 3 * SEAL_CHECK_S)
            assert broker.leadership.session != session

    virtually(main())


def test_a_broker_does_not_join_where_a_session_has_written_in_a_leader_epoch_that_its_metadata_do_not_know(tmp_path: Path) -> None:
    """As after a restore of etcd from its own snapshot: a partition had moved to another session that the snapshot knows."""

    async def main() -> None:
        bucket = MemoryObjectStore()
        async with one_broker(bucket, tmp_path / "m", killed=True) as broker:
            topic = await broker.create("orders", 2)
            await broker.produce(partition_of(topic), b"a")
            state = broker.view.partitions.get(partition_of(topic))
            assert state is not None
            other = SessionId(999)
            moved_back = msgspec.structs.replace(state, leader_session=other, sessions=(SessionSpan(LeaderEpoch(0), other),))
        store = SqliteStore(tmp_path / "m")
        await store.transact([], [Put(LAYOUT.partition(partition_of(topic)), msgspec.json.encode(moved_back))])
        await store.close()
        with pytest.raises(ExceptionGroup) as ended:
            async with one_broker(bucket, tmp_path / "m"):
                pass
        assert ended.group_contains(Rejected, match="the metadata know nothing of it", depth=None)

    asyncio.run(main())
