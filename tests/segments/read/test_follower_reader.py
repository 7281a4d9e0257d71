"""Another broker reads what a leader has located: the same records, of the same bucket, through its own cold pool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt, OutOfRange, TidelogError, Unavailable
from metadata.model import Offset
from segments.bucket.layout import manifest_key
from segments.history.index import HistoryIndex
from segments.history.manifest import Manifest, encode_manifest
from segments.read import follower_reader
from segments.read.follower_reader import FollowerReader, LocatedTarget
from segments.read.log_reader import FetchResult, FetchTarget, LogReader
from segments.read.reader_notifier import News
from segments.read.record_locations import LeaderSnapshot
from tests.kit.segments.batches import ORDERS, batch_of
from tests.kit.segments.scripted_store import slow
from tests.kit.segments.tiered_partition import EVERYTHING, TOPIC, TieredPartition, tuples_in
from tests.simulation.virtual_loop import virtual_loop

# Twelve batches of two records: offsets 0 to 23.
V = [batch_of(b"a%d" % number, b"b%d" % number) for number in range(12)]


class Pair:
    """A leader, and another broker that reads what it leads. Both have the bucket; the manifest of the leader lies there."""

    def __init__(self, partition: TieredPartition, leader: LogReader) -> None:
        self.partition = partition
        self.leader = leader
        self.located: FollowerReader

    async def reported(self, offset: int, *, bytes_max: int = EVERYTHING) -> FetchResult:
        """What the leader answers who would read from the bucket itself."""
        (answer,) = await self.leader.fetch(
            [FetchTarget(ORDERS, offset, bytes_max, locations_bytes_min=1)],
            lambda _: self.partition.led,
            News(),
            bytes_max=bytes_max,
            bytes_min=1,
            wait_ms_max=0,
        )
        assert isinstance(answer, FetchResult), answer
        return answer

    async def read(self, offset: int, reported: FetchResult, *, bytes_max: int = EVERYTHING) -> FetchResult | TidelogError:
        assert reported.located is not None
        assert reported.batches == []
        where = LeaderSnapshot(reported.located, reported.high_watermark, reported.log_start_offset, reported.leader_epoch)
        (answer,) = await self.located.fetch(
            [LocatedTarget(TOPIC, FetchTarget(ORDERS, offset, bytes_max), where)], bytes_max=bytes_max
        )
        return answer

    async def fetched(self, offset: int, *, bytes_max: int = EVERYTHING) -> FetchResult:
        reported = await self.reported(offset, bytes_max=bytes_max)
        if reported.located is None:
            return reported
        answer = await self.read(offset, reported, bytes_max=bytes_max)
        if isinstance(answer, TidelogError):
            raise answer
        assert answer[3:6] == reported[3:6], "bounds and epoch are the leader's"
        return answer


def plant(partition: TieredPartition, manifest: Manifest) -> None:
    partition.store.plant(manifest_key(TOPIC, ORDERS, manifest.version), encode_manifest(manifest))


def paired(partition: TieredPartition, scenario: Callable[[Pair], Awaitable[None]]) -> None:
    plant(partition, partition.manifest)

    async def work(leader: LogReader) -> None:
        pair = Pair(partition, leader)
        async with asyncio.TaskGroup() as tasks:
            pair.located = FollowerReader(partition.store, partition.pool, spawn=tasks.create_task, read_timeout_s=1000)
            await scenario(pair)

    partition.with_reader(work)


@given(st.data())
def test_any_history_reads_the_same_there_from_any_offset_in_answers_of_any_size(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12), label="batches")
    compacted = data.draw(st.integers(0, count), label="compacted")
    kept = data.draw(st.none() | st.sets(st.integers(0, 24)), label="kept")
    partition = TieredPartition(
        V[:count],
        compacted=compacted,
        hot=data.draw(st.integers(0, count - compacted), label="hot"),
        file_batches=data.draw(st.integers(1, 4), label="file_batches"),
        group_bytes=data.draw(st.sampled_from([1, 200, 1 << 20]), label="group_bytes"),
        keeps=(lambda _: True) if kept is None else lambda offset: offset in kept,
        epoch_batches=data.draw(st.integers(1, 9), label="epoch_batches"),
        segment_batches=data.draw(st.integers(1, 3), label="segment_batches"),
    )
    first = data.draw(st.integers(0, partition.end - 1), label="first")
    bytes_max = data.draw(st.sampled_from([1, 150, 1000, 1 << 20]), label="bytes_max")

    async def scenario(pair: Pair) -> None:
        read, offset = [], first
        while offset < partition.end:
            fetched = await pair.fetched(offset, bytes_max=bytes_max)
            assert fetched.next_offset > offset, "each fetch gets on"
            assert fetched.next_offset <= partition.end
            read += tuples_in(fetched.batches, from_offset=offset)
            offset = fetched.next_offset
        assert read == [record for record in partition.records if record[0] >= first]

    paired(partition, scenario)


def test_the_leader_reads_nothing_and_the_tail_is_read_from_its_segments_too() -> None:
    partition = TieredPartition(V, compacted=6, hot=6)

    async def scenario(pair: Pair) -> None:
        partition.store.calls.clear()
        reported = [await pair.reported(offset) for offset in (0, 14)]
        assert partition.store.calls == []
        assert [answer.next_offset for answer in reported] == [24, 24]
        assert (await pair.reported(14, bytes_max=1)).next_offset == 16
        fetched = await pair.fetched(14)
        assert tuples_in(fetched.batches, from_offset=14) == partition.records[14:]
        assert partition.store.count("get") == 5
        await pair.fetched(14)
        assert partition.store.count("get") == 5, "the cold pool has it"

    paired(partition, scenario)


def test_a_fetch_that_waits_for_more_bytes_receives_locations_at_its_deadline() -> None:
    partition = TieredPartition(V, compacted=6)

    async def scenario(pair: Pair) -> None:
        async def fetch(bytes_min: int) -> tuple[FetchResult | TidelogError, float]:
            begun_s = virtual_loop().time()
            target = FetchTarget(ORDERS, 14, EVERYTHING, locations_bytes_min=1)
            (answer,) = await pair.leader.fetch(
                [target],
                lambda _: partition.led,
                News(),
                bytes_max=EVERYTHING,
                bytes_min=bytes_min,
                wait_ms_max=500,
            )
            return answer, virtual_loop().time() - begun_s

        at_once, late = await fetch(100), await fetch(1 << 20)
        assert at_once[0] == late[0]
        assert (at_once[1], late[1]) == (0, 0.5)

    paired(partition, scenario)


def test_a_manifest_is_read_once_by_its_name_and_not_at_all_for_the_tail() -> None:
    partition = TieredPartition(V, compacted=6, group_bytes=1 << 20)
    key = manifest_key(TOPIC, ORDERS, 1)

    async def scenario(pair: Pair) -> None:
        await pair.fetched(12)
        assert key not in [call.key for call in partition.store.calls]
        await asyncio.gather(*(pair.fetched(offset) for offset in (0, 3, 6)))
        await pair.fetched(0)
        assert [call.kind for call in partition.store.calls if call.key == key] == ["get"]
        assert partition.store.count("list") == 0

    paired(partition, scenario)


def compacted_on(partition: TieredPartition, behind: TieredPartition) -> Manifest:
    """A newer manifest, that has come as far as the other partition's; its files are put on the bucket as well."""
    for key in behind.file_keys:
        partition.store.plant(key, behind.store.content(key))
    newer = msgspec.structs.replace(behind.manifest, version=2)
    plant(partition, newer)
    return newer


def test_records_that_were_compacted_and_trimmed_since_the_leader_answered_are_found_in_the_newest_manifest() -> None:
    partition, behind = TieredPartition(V, compacted=0), TieredPartition(V, compacted=12)

    async def scenario(pair: Pair) -> None:
        reported = await pair.reported(4)
        compacted_on(partition, behind)
        for seq in range(12):
            await partition.store.delete(f"wal/{7:016x}/{seq:016x}")
        answer = await pair.read(4, reported)
        assert isinstance(answer, FetchResult), answer
        assert tuples_in(answer.batches, from_offset=4) == partition.records[4:]

    paired(partition, scenario)


def test_a_follower_reads_a_single_location_at_once() -> None:
    partition, behind = TieredPartition(V, compacted=0), TieredPartition(V, compacted=12)

    async def scenario(pair: Pair) -> None:
        reported = await pair.reported(4, bytes_max=1)
        compacted_on(partition, behind)
        await partition.store.delete(f"wal/{7:016x}/{2:016x}")
        answer = await pair.read(4, reported, bytes_max=1)
        assert isinstance(answer, FetchResult), answer
        assert tuples_in(answer.batches, from_offset=4)[0] == partition.records[4]

    paired(partition, scenario)


def test_a_manifest_that_the_leader_names_and_that_was_collected_is_replaced_by_the_newest() -> None:
    partition, behind = TieredPartition(V, compacted=6), TieredPartition(V, compacted=12)

    async def scenario(pair: Pair) -> None:
        reported = await pair.reported(0)
        compacted_on(partition, behind)
        await partition.store.delete(manifest_key(TOPIC, ORDERS, 1))
        for key in partition.file_keys:
            await partition.store.delete(key)
        answer = await pair.read(0, reported)
        assert isinstance(answer, FetchResult), answer
        assert tuples_in(answer.batches) == partition.records

    paired(partition, scenario)


def test_an_older_manifest_than_the_leader_names_is_not_used_however_long_it_is_held() -> None:
    partition, behind = TieredPartition(V, compacted=6), TieredPartition(V, compacted=9)

    async def scenario(pair: Pair) -> None:
        await pair.fetched(0)
        newer = compacted_on(partition, behind)
        for key in partition.file_keys:  # the grace is over
            await partition.store.delete(key)
        partition.led.history = HistoryIndex(newer, TOPIC)
        partition.led.runs.drop_below(newer.compacted_to)
        partition.store.calls.clear()
        fetched = await pair.fetched(0)
        assert tuples_in(fetched.batches) == partition.records
        asked_for = {call.key for call in partition.store.calls}
        assert manifest_key(TOPIC, ORDERS, 2) in asked_for
        assert not asked_for & set(partition.file_keys)

    paired(partition, scenario)


def test_records_that_a_newer_manifest_has_deleted_are_out_of_range_and_never_stepped_over() -> None:
    partition, behind = TieredPartition(V, compacted=6), TieredPartition(V, compacted=12)

    async def scenario(pair: Pair) -> None:
        reported = await pair.reported(4)
        cut = msgspec.structs.replace(compacted_on(partition, behind), log_start_offset=Offset(10), files=behind.manifest.files)
        plant(partition, cut)
        await partition.store.delete(manifest_key(TOPIC, ORDERS, 1))
        answer = await pair.read(4, reported)
        assert isinstance(answer, OutOfRange)
        assert answer.details == {"log_start_offset": 10, "high_watermark": 24}

    paired(partition, scenario)


@pytest.mark.parametrize("gone", [True, False])
def test_an_object_that_is_gone_or_damaged_and_lies_nowhere_else_is_an_error_of_its_own_partition(gone: bool) -> None:
    partition = TieredPartition(V, compacted=6)

    async def scenario(pair: Pair) -> None:
        (key,) = partition.file_keys
        if gone:
            await partition.store.delete(key)
        else:
            partition.damage(key, 10)
        reported = await pair.reported(0)
        assert isinstance(await pair.read(0, reported), Corrupt)
        assert tuples_in((await pair.fetched(14)).batches, from_offset=14) == partition.records[14:]

    paired(partition, scenario)


def test_a_manifest_that_is_nowhere_is_an_error() -> None:
    partition = TieredPartition(V, compacted=6)

    async def scenario(pair: Pair) -> None:
        await partition.store.delete(manifest_key(TOPIC, ORDERS, 1))
        reported = await pair.reported(0)
        answer = await pair.read(0, reported)
        assert isinstance(answer, Unavailable)
        assert "has no manifest" in answer.message
        plant(partition, partition.manifest)
        assert tuples_in((await pair.fetched(0)).batches, from_offset=0) == partition.records

    paired(partition, scenario)


def test_a_reader_that_waits_for_a_manifest_may_hang_up_and_disturbs_no_other() -> None:
    partition = TieredPartition(V, compacted=6)

    async def scenario(pair: Pair) -> None:
        reported = await pair.reported(0)
        key = manifest_key(TOPIC, ORDERS, 1)
        partition.store.script("get", key, slow(1.0))
        async with asyncio.TaskGroup() as readers:
            first = readers.create_task(pair.read(0, reported))
            await asyncio.sleep(0.1)
            second = readers.create_task(pair.read(0, reported))
            await asyncio.sleep(0.1)
            first.cancel()
        answer = second.result()
        assert isinstance(answer, FetchResult)
        assert tuples_in(answer.batches) == partition.records
        assert [call.kind for call in partition.store.calls if call.key == key] == ["get"]

    paired(partition, scenario)


def test_manifests_are_held_within_a_bound_without_what_only_leaders_need(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = TieredPartition(V, compacted=6)
    monkeypatch.setattr(follower_reader, "BYTES_MAX", 1)

    async def scenario(pair: Pair) -> None:
        await pair.fetched(0)
        histories = pair.located._histories
        held = histories.held(ORDERS)
        assert held is not None, "one is held in any case"
        assert histories.bytes_used == follower_reader.memory_bytes(held.manifest)
        plant(partition, msgspec.structs.replace(partition.manifest, version=2))
        await histories.newest(TOPIC, ORDERS)
        await histories.newest(TOPIC, ORDERS)
        held = histories.held(ORDERS)
        assert held is not None
        assert held.version == 2
        assert histories.bytes_used == follower_reader.memory_bytes(held.manifest)

    paired(partition, scenario)
