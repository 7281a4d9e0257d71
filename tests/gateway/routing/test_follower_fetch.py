"""What a broker reads itself for readers of its rack, and what it asks the leader for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.routing import follower_fetch
from gateway.routing.follower_fetch import Answer, FollowerFetch, Named
from gateway.routing.location_messages import decode_locations, encode_locations
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import Corrupt, NoLeader, NotLeader, OutOfRange, TidelogError
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId
from segments.log.session_log import FetchTarget, SessionLog
from segments.read.follower_reader import LocatedTarget
from segments.read.log_reader import FetchResult
from segments.read.record_locations import LeaderSnapshot, RecordLocations
from segments.wal.run_index import RunLocation
from tests.kit.segments.batches import partition_of

RUN = RunLocation(Offset(3), Offset(8), SessionId(7), SegmentSeq(2), 40, 90_000, LeaderEpoch(4), -1)
WHERE = RecordLocations(12, (RUN,))
LOCATIONS = FetchResult([], 90_000, Offset(3), Offset(9), Offset(1), LeaderEpoch(4), WHERE)
RECORDS = FetchResult([b"from the leader"], 15, Offset(9), Offset(9), Offset(1), LeaderEpoch(4))
READ = FetchResult([b"from the bucket, all"], 20, Offset(9), Offset(9), Offset(1), LeaderEpoch(4))
NOTHING = READ._replace(batches=[], size_bytes=0, next_offset=Offset(3))
TARGET = FetchTarget(partition_of(0), 3, 1 << 20, locations_bytes_min=1000)
FAR, NEAR = (BrokerRegistration(broker_id=f"b{n}", session=SessionId(n), rack=rack) for n, rack in enumerate("ab"))


class World:
    """A broker of rack b, a bucket and a leader that answer what a test says."""

    def __init__(self) -> None:
        here = SimpleNamespace(reads=SimpleNamespace(located=SimpleNamespace(fetch=self._fetch_here)))
        self.reads = FollowerFetch(self._fetch_at_peer, lambda: cast(SessionLog, here), rack="b", part_bytes_min=1000)
        self.leader: list[Answer] = [LOCATIONS]
        """Its answers where it is asked for places; else it answers with records."""
        self.bucket: list[Answer] | TidelogError = [READ]
        self.asked: list[list[int | None]] = []
        """What each call to the leader has named, by target."""
        self.reported: list[LocatedTarget] = []

    async def _fetch_at_peer(
        self, leader: BrokerRegistration, targets: Sequence[Named], *, bytes_max: int, bytes_min: int, wait_ms_max: float
    ) -> list[Answer]:
        self.asked.append([target.locations_bytes_min for _, target in targets])
        if any(self.asked[-1]):
            return list(self.leader)
        assert (bytes_min, wait_ms_max) == (0, 0) or len(self.asked) == 1, "it has said that there is something"
        return [RECORDS for _ in targets]

    async def _fetch_here(self, asked: Sequence[LocatedTarget], *, bytes_max: int) -> list[Answer]:
        self.reported += asked
        if isinstance(self.bucket, TidelogError):
            raise self.bucket
        if not self.bucket:
            await asyncio.Event().wait()
        return self.bucket

    def fetched(
        self, *partitions: int, rack: str = "b", leader: BrokerRegistration = FAR, bytes_max: int = 1 << 20
    ) -> list[Answer]:
        locations_bytes_min = self.reads.locations_bytes_min(rack)
        targets = [
            ("orders", FetchTarget(partition_of(number), 3, 1 << 20, locations_bytes_min=locations_bytes_min))
            for number in partitions
        ]
        return asyncio.run(self.reads.fetch(leader, targets, bytes_max=bytes_max, bytes_min=1, wait_ms_max=500))


def test_records_of_a_leader_in_another_rack_are_read_from_the_bucket_at_its_locations() -> None:
    world = World()
    assert world.fetched(0) == [READ]
    assert world.asked == [[1000]]
    reported = LeaderSnapshot(WHERE, Offset(9), Offset(1), LeaderEpoch(4))
    assert world.reported == [LocatedTarget("orders", TARGET, reported)]
    assert (world.reads.counters.bucket_reads, world.reads.counters.bucket_bytes, world.reads.counters.leader_reads) == (1, 20, 0)


def test_a_reader_of_another_rack_or_none_and_a_leader_of_this_rack_are_nothing_to_read_for() -> None:
    for rack in ("", "a"):
        world = World()
        assert world.fetched(0, rack=rack) == [RECORDS]
        assert world.asked == [[None]]
    world = World()
    assert world.fetched(0, leader=NEAR) == [RECORDS]
    assert world.asked == [[None]]
    assert world.reads.counters.leader_reads == 0, "no zone was crossed"


def test_records_and_errors_of_the_leader_come_back_as_they_are() -> None:
    world = World()
    error = NotLeader("not led there")
    world.leader = [RECORDS, error, LOCATIONS]
    assert world.fetched(0, 1, 2) == [RECORDS, error, READ]
    assert [target.target.partition for target in world.reported] == [partition_of(2)]
    assert (world.reads.counters.leader_reads, world.reads.counters.leader_bytes) == (1, 15)


def test_a_follower_asks_the_leader_for_records_that_it_can_not_read_and_for_nothing_else() -> None:
    world = World()
    world.leader = [LOCATIONS, LOCATIONS, LOCATIONS]
    for refusal in (Corrupt("damaged"), OutOfRange("a newer manifest has deleted it")):
        world.bucket = [READ, refusal, NOTHING]
        world.asked.clear()
        assert world.fetched(0, 1, 2) == [READ, RECORDS, NOTHING], "what others left no time for comes with the next fetch"
        assert world.asked == [[1000, 1000, 1000], [None]]
    assert world.reads.counters.failures == 2


def test_a_leader_that_has_said_there_is_something_is_asked_for_it_where_nothing_was_read() -> None:
    world = World()
    world.bucket = [NOTHING]
    assert world.fetched(0) == [RECORDS]
    assert world.asked == [[1000], [None]]
    world.bucket = NoLeader("this broker has no session")
    assert world.fetched(0) == [RECORDS]


def test_a_bucket_that_is_slow_from_here_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_fetch, "READ_S", 0.01)
    world = World()
    world.bucket = []
    assert world.fetched(0) == [RECORDS]


def test_probes_are_not_counted_and_repeated_failures_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    assert world.fetched(0, bytes_max=1) == [READ]
    assert world.reads.counters.bucket_reads == 0

    async def twice() -> None:
        world.bucket = [Corrupt("wal/1 is damaged")]
        for _ in range(2):
            await world.reads.fetch(FAR, [("orders", TARGET)], bytes_max=9, bytes_min=1, wait_ms_max=0)

    asyncio.run(twice())
    assert [record.message for record in caplog.records] == [
        "reading located records failed leader=b0 rack=b: wal/1 is damaged; fetching them from the leader"
    ]
    assert world.reads.counters.failures == 2


def test_a_partition_that_is_fetched_twice_in_one_request_is_located_once() -> None:
    world = World()
    world.leader = [LOCATIONS, RECORDS]
    assert world.fetched(0, 0) == [READ, RECORDS]
    assert world.asked == [[1000, None]]


def test_record_locations_survive_encoding() -> None:
    assert decode_locations(encode_locations(WHERE)) == WHERE
    assert decode_locations(encode_locations(RecordLocations(0, ()))) == RecordLocations(0, ())
