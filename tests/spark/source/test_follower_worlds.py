"""A follower beside brokers that write, move, are given up and compacted meanwhile: by chance, and the same for each seed.

A world has one partition. Between any two calls that the follower makes of the bucket, and between its looks, brokers go on:

    produce    a segment of the leader's session; its PUT may land later, behind those that follow it
    land       a PUT that was on its way
    move       to another session, or a new one, with or without a seal; numbers may be claimed late
    compact    some committed runs, into a manifest
    trim       a marker, and the deletion of some segments below it
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import claim_key, segment_key, trimmed_key
from segments.history.manifest import EpochStart, Manifest, no_manifest
from segments.history.manifest_edits import with_compacted
from segments.history.manifest_store import commit_manifest, newest_manifest
from segments.object_store.memory import MemoryObjectStore
from segments.records.batch import parse_whole, stamp
from segments.records.columns import encode_records
from segments.records.compression import Codec
from segments.wal.segment_file import StampedBatch, encode_seal, encode_segment
from spark.source import log_snapshot
from spark.source.log_snapshot import LogFollower, PartitionSnapshot
from tests.kit.segments.batches import ORDERS, PAYMENTS, WRITER

SEEDS = 40
POLLS = 60


class SegmentRun(NamedTuple):
    base: int
    end: int
    session: int
    seq: int
    epoch: int


class Put(NamedTuple):
    session: int
    seq: int
    body: bytes


@dataclass(slots=True)
class WrittenSession:
    next_seq: int = 0
    sealed: bool = False
    trimmed_to: int = 0


@dataclass(slots=True)
class World:
    chance: random.Random
    store: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    sessions: dict[int, WrittenSession] = field(default_factory=dict)
    on_their_way: list[Put] = field(default_factory=list)
    runs: list[SegmentRun] = field(default_factory=list)
    leader: int | None = None
    epoch: int = 0
    end_offset: int = 0
    next_number: int = 1
    unclaimed: int | None = None

    @property
    def committed(self) -> int:
        """The end of what no PUT that is on its way comes before."""
        missing: dict[int, int] = {}
        for put in self.on_their_way:
            missing[put.session] = min(put.seq, missing.get(put.session, put.seq))
        end = 0
        for run in self.runs:
            if run.seq >= missing.get(run.session, run.seq + 1):
                break
            end = run.end
        return end

    async def go_on(self) -> None:
        if self.leader is None:
            await self._move_to(await self._new_session())
            return
        steps = [self._produce, self._land, self._move, self._compact, self._trim]
        await self.chance.choices(steps, weights=[50, 15, 10, 13, 12])[0]()

    async def _new_session(self) -> int:
        number = self.next_number
        if self.unclaimed is not None and self.chance.random() < 0.6:
            number, self.unclaimed = self.unclaimed, None
        elif self.chance.random() < 0.4:
            self.unclaimed, number = number, number + 1
        self.next_number = max(self.next_number, number + 1)
        await self.store.create(claim_key(SessionId(number)), [b"{}"])
        self.sessions[number] = WrittenSession()
        return number

    async def _move_to(self, number: int) -> None:
        self.leader = number
        self.epoch += 1

    async def _produce(self) -> None:
        assert self.leader is not None
        session = self.sessions[self.leader]
        seq, session.next_seq = session.next_seq, session.next_seq + 1
        mine = self.chance.random() < 0.7
        records = self.chance.randint(1, 3)
        where, base = (ORDERS, self.end_offset) if mine else (PAYMENTS, 0)
        if mine:
            self.runs.append(SegmentRun(base, base + records, self.leader, seq, self.epoch))
            self.end_offset += records
        committed_to = min([put.seq for put in self.on_their_way if put.session == self.leader], default=seq)
        put = Put(self.leader, seq, self._segment(where, base, records, seq=seq, committed_to=committed_to))
        if self.chance.random() < 0.35:
            self.on_their_way.append(put)
        else:
            await self._arrive(put)

    def _segment(self, where: TopicPartition, base: int, records: int, *, seq: int, committed_to: int) -> bytes:
        assert self.leader is not None
        batch = encode_records([(b"k", b"v", (), 1)] * records, codec=Codec.NONE)
        epoch = LeaderEpoch(self.epoch)
        stamped = StampedBatch(
            parse_whole(batch), Offset(base), stamp(batch, base_offset=Offset(base), leader_epoch=epoch), memoryview(batch)[16:]
        )
        encoded = encode_segment(
            session=SessionId(self.leader),
            seq=SegmentSeq(seq),
            writer=WRITER,
            committed_to=SegmentSeq(committed_to),
            written_at_ms=1,
            partitions=[(where, epoch, [stamped])],
        )
        return b"".join(bytes(buffer) for buffer in encoded.body)

    async def _arrive(self, put: Put) -> None:
        await self.store.create(segment_key(SessionId(put.session), SegmentSeq(put.seq)), [put.body])

    async def _land(self) -> None:
        if self.on_their_way:
            await self._arrive(self.on_their_way.pop(self.chance.randrange(len(self.on_their_way))))

    async def _move(self) -> None:
        assert self.leader is not None
        while self.on_their_way:
            await self._land()
        session = self.sessions[self.leader]
        others = [number for number, other in self.sessions.items() if number != self.leader and not other.sealed]
        if self.chance.random() < 0.4:
            at, number = SegmentSeq(session.next_seq), SessionId(self.leader)
            seal = encode_seal(
                session=number, seq=at, writer=WRITER, committed_to=at, sealed_at_ms=1, sealed_by=SessionId(self.next_number)
            )
            await self.store.create(segment_key(number, at), [seal])
            session.sealed = True
        known = others and self.chance.random() < 0.6
        await self._move_to(self.chance.choice(others) if known else await self._new_session())

    async def _manifest(self) -> Manifest:
        return await newest_manifest(self.store, "orders", ORDERS) or no_manifest(ORDERS)

    async def _compact(self) -> None:
        before = await self._manifest()
        ends = [run.end for run in self.runs if before.compacted_to < run.end <= self.committed]
        if not ends:
            return
        upto = self.chance.choice(ends)
        known = before.epochs[-1].leader_epoch if before.epochs else -1
        begun: dict[int, int] = {}
        for run in self.runs:
            if run.base >= before.compacted_to and run.end <= upto and run.epoch > known:
                begun.setdefault(run.epoch, run.base)
        following = with_compacted(
            before,
            files=[],
            compacted_to=Offset(upto),
            epochs=[EpochStart(LeaderEpoch(epoch), Offset(base)) for epoch, base in begun.items()],
            producers=(),
            writer="0" * 32,
            now_ms=1,
        )
        assert await commit_manifest(self.store, "orders", following)

    async def _trim(self) -> None:
        compacted_to = (await self._manifest()).compacted_to
        for number, session in self.sessions.items():
            needed = [run.seq for run in self.runs if run.session == number and run.end > compacted_to]
            needed += [put.seq for put in self.on_their_way if put.session == number]
            to = self.chance.randint(0, min([*needed, session.next_seq]))
            if to <= session.trimmed_to:
                continue
            await self.store.create(trimmed_key(SessionId(number), SegmentSeq(to)), [b""])
            for seq in range(session.trimmed_to, to):
                if self.chance.random() < 0.8:
                    await self.store.delete(segment_key(SessionId(number), SegmentSeq(seq)))
            session.trimmed_to = to


class BesideBrokers:
    """The bucket as the follower sees it: brokers go on before some of its calls, and pages of a listing are short."""

    def __init__(self, world: World, rate: float) -> None:
        self.url = "memory://"
        self.rate = rate
        self._world = world
        self._going_on = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._world.store, name)
        if name not in {"list", "get", "tail"}:
            return method

        async def call(*arguments: Any, **options: Any) -> Any:
            if not self._going_on and self._world.chance.random() < self.rate:
                self._going_on = True
                for _ in range(self._world.chance.randint(1, 3)):
                    await self._world.go_on()
                self._going_on = False
            if name == "list" and self._world.chance.random() < 0.5:
                options["limit"] = min(options.get("limit", 1000), 2)
            return await method(*arguments, **options)

        return call


def check(snapshot: PartitionSnapshot) -> None:
    """What it holds has no gap."""
    following = snapshot.manifest.compacted_to
    for location in snapshot.runs.between(0, 1 << 60):
        assert location.base_offset == following
        following = Offset(location.last_offset + 1)
    assert snapshot.end_offset in (following, snapshot.start_offset)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_follower_loses_no_record_and_shows_none_too_early(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_snapshot, "PAUSE_S", 0.0)

    async def test() -> None:
        world = World(random.Random(seed))
        bucket = BesideBrokers(world, world.chance.choice([0, 0.02, 0.1]))
        follower = LogFollower(bucket)
        for poll in range(POLLS):
            for _ in range(world.chance.randint(0, 6)):
                await world.go_on()
            before = world.committed
            whole = poll == 0 or world.chance.random() < 0.4
            snapshot = (await follower.poll({ORDERS: "orders"}, manifests=whole))[ORDERS]
            if snapshot.damage is not None:
                assert bucket.rate, "a gap is reported only where something moves meanwhile"
                continue
            check(snapshot)
            assert snapshot.end_offset <= world.committed
            assert not whole or snapshot.end_offset >= before
        bucket.rate = 0
        last = (await follower.poll({ORDERS: "orders"}))[ORDERS]
        assert last.damage is None
        assert last.end_offset == world.committed

    asyncio.run(test())
