"""Brokers of which only the controllers are real, on one metadata store and one bucket, under virtual time.

The brokers beside them are keys under leases: a test registers them, lets them hand over what they are asked for, and ends them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from gateway.controller.controller import Controller
from metadata.cluster.broker_registry import BrokerCache, BrokerRegistration, encode_registration
from metadata.cluster.leadership import PartitionState, handed_over, read_all
from metadata.cluster.leadership_cache import PartitionCache
from metadata.model import Partition, Revision, SegmentSeq, SessionId, TopicPartition
from metadata.store.interface import LeaseId, Operation, Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from metadata.topics.cache import TopicCache
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic
from segments.bucket.layout import segment_key
from segments.wal.segment_file import SEAL_BYTES
from segments.wal.session import Session
from tests.kit.metadata.faulty_store import FaultyStore
from tests.kit.segments.scripted_store import ScriptedStore
from tests.simulation.virtual_loop import run, virtual_loop

LAYOUT = KeyLayout()
TTL_S = 9.0
RELEASE_TIMEOUT_S = 30.0
SOON_S = 2.0
_NONCES = itertools.count()


class Contender:
    """The controller of one broker, with caches and a way to the metadata of its own."""

    def __init__(self, stage: Stage, session: int, lease: LeaseId) -> None:
        self.store = FaultyStore(stage.sqlite)
        self.topics = TopicCache(self.store, LAYOUT)
        self.brokers = BrokerCache(self.store, LAYOUT)
        self.partitions = PartitionCache(self.store, LAYOUT)
        self.controller = Controller(
            stage.bucket,
            self.store,
            self.topics,
            self.brokers,
            self.partitions,
            layout=LAYOUT,
            session=Session(SessionId(session), session.to_bytes(16, "big")),
            broker_id=f"b{session}",
            lease=lease,
            release_timeout_s=RELEASE_TIMEOUT_S,
            snapshot_interval_s=1e9,
            history_s=1e9,
            now_ms=virtual_loop().now_ms,
            new_nonce=lambda: f"{session} {next(_NONCES)}".encode(),
        )
        caches = (self.topics, self.brokers, self.partitions)
        self._following = [asyncio.ensure_future(cache.run()) for cache in caches]
        self.running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        for cache in (self.topics, self.brokers, self.partitions):
            await cache.wait_for(Revision(1), timeout_s=None)
        await self.controller.run()

    async def stop(self) -> None:
        for task in (self.running, *self._following):
            task.cancel()
        await asyncio.wait((self.running, *self._following))


class Stage:
    def __init__(self) -> None:
        self.sqlite = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        self.bucket = ScriptedStore()
        self.topics = TopicRegistry(self.sqlite, LAYOUT)
        self.contenders: dict[int, Contender] = {}
        self.leases: dict[int, LeaseId] = {}

    async def write(self, *operations: Operation) -> None:
        assert (await self.sqlite.transact([], operations)).succeeded

    async def register(self, *sessions: int, draining: bool = False) -> None:
        """Brokers b1, b2, … whose sessions are 1, 2, …, for as long as they don't end."""
        for session in sessions:
            lease = self.leases.get(session) or await self.sqlite.grant_lease(1e6)
            self.leases[session] = lease
            registration = BrokerRegistration(broker_id=f"b{session}", session=SessionId(session), draining=draining)
            await self.write(Put(LAYOUT.broker(f"b{session}"), encode_registration(registration), lease))

    async def end(self, session: int) -> None:
        """The lease of a session runs out, and takes all its keys along."""
        await self.sqlite.revoke_lease(self.leases.pop(session))

    async def stand(self, session: int) -> Contender:
        """A registered broker stands for controller."""
        self.contenders[session] = contender = Contender(self, session, self.leases[session])
        return contender

    async def topic(self, name: str, partitions: int) -> Topic:
        return await self.topics.create(name, partitions)

    async def controller(self) -> str | None:
        held = await self.sqlite.get(LAYOUT.controller)
        return held.value.decode() if held is not None else None

    async def states(self, topic: Topic) -> list[tuple[int, int, int | None] | None]:
        """By partition: leader's session, epoch, and whom it shall move to."""
        stored = await read_all(self.sqlite, LAYOUT)
        found = [stored.get(TopicPartition(topic.id, Partition(number))) for number in range(topic.partition_count)]
        return [None if held is None else (held[0].leader_session, held[0].leader_epoch, held[0].moving_to) for held in found]

    async def leaders(self, topic: Topic) -> list[int | None]:
        return [None if state is None else state[0] for state in await self.states(topic)]

    async def put_state(self, topic: Topic, number: int, state: PartitionState) -> None:
        await self.write(Put(LAYOUT.partition(TopicPartition(topic.id, Partition(number))), msgspec.json.encode(state)))

    async def hand_over_all(self) -> int:
        """As their leaders do, what is asked for. How many those were."""
        asked = [(p, state) for p, (state, _) in (await read_all(self.sqlite, LAYOUT)).items() if state.moving_to is not None]
        for partition, state in asked:
            released = handed_over(state, SegmentSeq(0), {state.leader_session})
            await self.write(Put(LAYOUT.partition(partition), msgspec.json.encode(released)))
        return len(asked)

    def sealed(self, session: int) -> bool:
        key = segment_key(SessionId(session), SegmentSeq(0))
        return self.bucket.has(key) and len(self.bucket.content(key)) == SEAL_BYTES


def on_stage(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        stage = Stage()
        await stage.write(Put(LAYOUT.cluster_id, b"the-cluster"))
        housekeeping = asyncio.ensure_future(stage.sqlite.run())
        await scenario(stage)
        for contender in stage.contenders.values():
            assert not contender.running.done(), contender.running
            await contender.stop()
        housekeeping.cancel()
        await stage.sqlite.close()

    run(main())


async def soon() -> None:
    """Long enough for whatever is to happen at once."""
    await asyncio.sleep(SOON_S)
