"""One member of a group: where it begins and ends, pause and seek, callers that are slow, and what is refused."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tidelog
from gateway.routing.log_service import EpochQuestion
from metadata.errors import (
    Denied,
    InstanceFenced,
    InvalidArgument,
    NotFound,
    OutOfRange,
    Rejected,
    StaleMember,
    TidelogError,
    UnknownTopic,
)
from metadata.group_member.member import GroupMember
from metadata.groups.model import NO_GENERATION, NO_INSTANCE, NO_MEMBER
from metadata.groups.offsets import CommittedOffset
from metadata.model import LeaderEpoch, Offset, Partition, TopicPartition
from segments.wal.run_index import EpochEnd
from tests.kit.gateway.small_broker import SmallBroker
from tests.kit.tidelog.consuming import until
from tests.kit.tidelog.grouping import GROUP, RECORDS, committed, connected, numbered, take, until_members, with_group
from tidelog.group import reader as group_reader
from tidelog.group.start_offsets import StartOffsets
from tidelog.settings import ResetPolicy

pytestmark = pytest.mark.slow

ALL = {0: 10, 1: 10, 2: 10}

# ── where it begins, and ends ──


CUT_AT = 4


async def with_a_cut_log(broker: SmallBroker, log: tidelog.Client) -> None:
    """All is read and committed; then the log of partition 1 is cut, and grows again under another leader."""
    async with log.consume("orders", group=GROUP) as consumer:
        await take(consumer, RECORDS)
    [epoch] = {found.leader_epoch for found in await log.groups.offsets(GROUP)}
    reported = broker.cluster_log.ends_of_epochs

    async def ends(questions: Sequence[EpochQuestion], *, wait_s: float = math.inf) -> list[EpochEnd | TidelogError]:
        return [
            EpochEnd(LeaderEpoch(epoch - 1), Offset(CUT_AT)) if asked.partition.partition == 1 else end
            for asked, end in zip(questions, await reported(questions), strict=True)
        ]

    broker.cluster_log.ends_of_epochs = ends  # type: ignore[method-assign]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_where_the_log_was_cut_below_what_is_committed_it_goes_on_at_the_cut_and_says_so(
    tmp_path: Path, reset: ResetPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        await with_a_cut_log(broker, log)
        async with log.consume("orders", group=GROUP, auto_offset_reset=reset, until="end") as consumer:
            again = [(record.partition, record.offset) async for record in consumer]
        assert again == [(1, offset) for offset in range(CUT_AT, 10)]
        assert "the log of orders/1 was cut at 4, below what group billing has committed (10, of leader epoch" in caplog.text

    with_group(tmp_path, scenario)


def test_or_ends_with_an_error_where_it_chose_that(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        await with_a_cut_log(broker, log)
        consumer = log.consume("orders", group=GROUP, auto_offset_reset="error", until="end")
        with pytest.raises(OutOfRange, match="was cut at 4, below what group billing has committed") as met:
            await consumer.chunk()
        assert "Go on at 4" in str(met.value.hint)

    with_group(tmp_path, scenario)


def test_a_reset_to_the_end_of_the_log_is_committed_before_a_record_comes(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        at = TopicPartition(broker.topic_cache.get("orders").id, Partition(1))
        beyond = {at: CommittedOffset(offset=50, committed_at_ms=0)}
        await broker.coordinated_groups.commit(GROUP, NO_MEMBER, NO_INSTANCE, NO_GENERATION, beyond)
        async with log.consume("orders", group=GROUP, auto_offset_reset="latest") as consumer:
            taking = asyncio.create_task(consumer.chunk())
            await until(lambda: consumer.positions.get(("orders", 1)) == 10)
            taking.cancel()
        assert (await committed(log))[1] == 10
        await log.produce("orders", "came while no member read", partition=1)
        async with log.consume("orders", group=GROUP, auto_offset_reset="latest") as consumer:
            assert [record.offset for record in await consumer.chunk()] == [10]

    with_group(tmp_path, scenario)


def test_a_committed_offset_with_an_unknown_leader_epoch_is_not_reset(tmp_path: Path) -> None:
    """Such an epoch may come from a commit by hand. A former leader, whose log ends earlier, might answer."""

    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        await with_a_cut_log(broker, log)
        [found] = [found for found in await log.groups.offsets(GROUP) if found.partition == 1]
        at = TopicPartition(broker.topic_cache.get("orders").id, Partition(1))
        by_hand = {at: CommittedOffset(offset=8, leader_epoch=found.leader_epoch + 1, committed_at_ms=0)}
        await broker.coordinated_groups.commit(GROUP, NO_MEMBER, NO_INSTANCE, NO_GENERATION, by_hand)
        async with log.consume("orders", group=GROUP, until="end") as consumer:
            assert [record.offset async for record in consumer if record.partition == 1] == [8, 9]

    with_group(tmp_path, scenario)


def test_a_consumer_has_the_id_and_generation_of_its_member(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP, client_id="till") as consumer:
            assert (consumer.member_id, consumer.generation) == ("", -1)
            await consumer.chunk()
            described = await log.groups.describe(GROUP)
            assert consumer.member_id.startswith("till-")
            assert ([member.member_id for member in described.members], described.generation) == (
                [consumer.member_id],
                consumer.generation,
            )

    with_group(tmp_path, scenario)


def test_a_group_reads_every_record_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP) as consumer:
            assert sorted(await take(consumer, RECORDS)) == list(range(RECORDS))
        assert await committed(log) == ALL
        await log.produce_many("orders", numbered(range(RECORDS, 36)))
        async with log.consume("orders", group=GROUP) as consumer:
            assert sorted(await take(consumer, 6)) == list(range(RECORDS, 36))

    with_group(tmp_path, scenario)


def test_each_group_reads_for_itself(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        for group in ("billing", "shipping"):
            async with log.consume("orders", group=group) as consumer:
                assert len(await take(consumer, RECORDS)) == RECORDS

    with_group(tmp_path, scenario)


@pytest.mark.parametrize(("reset", "first"), [(None, 0), ("earliest", 0), ("latest", RECORDS)])
def test_a_group_that_has_committed_nothing_begins_where_it_chose(tmp_path: Path, reset: ResetPolicy | None, first: int) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP, auto_offset_reset=reset) as consumer:
            taking = asyncio.create_task(take(consumer, RECORDS + 3 - first))
            await until(lambda: len(consumer.positions) == 3)
            await log.produce_many("orders", numbered(range(RECORDS, RECORDS + 3)))
            assert sorted(await taking) == list(range(first, RECORDS + 3))

    with_group(tmp_path, scenario)


def test_a_group_that_begins_at_the_end_reads_a_topic_that_comes_later_from_its_start(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume(re.compile("orders.*"), group=GROUP, auto_offset_reset="latest") as consumer:
            taking = asyncio.create_task(take(consumer, 1))
            await until(lambda: len(consumer.positions) == 3)
            await broker.create_topic("orders-new", 1)
            await log.produce("orders-new", 100)
            reading = consumer._reading
            reading._counts = {**reading._counts, "orders-new": 1}  # as it hears of it within `topic_age_ms_max`
            reading._member.subscription_changed()
            assert await taking == [100]

    with_group(tmp_path, scenario)


def test_or_raises_where_it_chose_that(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP, auto_offset_reset="error") as consumer:
            with pytest.raises(NotFound, match="group billing has committed nothing of orders/0") as raised:
                await consumer.chunk()
            assert "auto_offset_reset" in raised.value.hint
        await log.groups.seek(GROUP, 9, topics="orders")
        async with log.consume("orders", group=GROUP, auto_offset_reset="error") as consumer:
            assert sorted(await take(consumer, 3)) == [27, 28, 29]

    with_group(tmp_path, scenario)


def test_a_member_that_begins_at_the_end_commits_that_so_that_nothing_is_skipped_while_it_is_away(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP, auto_offset_reset="latest") as consumer:
            taking = asyncio.create_task(consumer.chunk())
            await until(lambda: len(consumer.positions) == 3)
            taking.cancel()
        assert await committed(log) == ALL

    with_group(tmp_path, scenario)


@pytest.mark.parametrize("options", [{"until": "end"}, {"follow": False}], ids=str)
def test_reading_up_to_the_end_ends_at_the_high_watermarks_of_the_beginning(tmp_path: Path, options: dict[str, object]) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        seen = []
        async for record in log.consume("orders", group=GROUP, **options):  # type: ignore[call-overload]
            seen.append(record.json())
            if len(seen) == 1:
                await log.produce_many("orders", numbered(range(100, 130)))
        assert sorted(seen) == list(range(RECORDS))
        await until_members(broker, 0)
        assert await committed(log) == ALL, "at the end, all is processed"

    with_group(tmp_path, scenario)


def test_a_member_that_is_given_nothing_to_read_up_to_the_end_of_ends(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("single", group=GROUP, heartbeat_interval_ms=200) as first:
            waiting = asyncio.create_task(first.chunk())
            await until(lambda: first.assignment() == [("single", 0)])
            async with connected(broker) as other:
                assert [r async for r in other.consume("single", group=GROUP, follow=False, heartbeat_interval_ms=200)] == []
            waiting.cancel()

    with_group(tmp_path, scenario)


# ── pause, resume, seek ──


def test_a_seek_within_the_loop_counts_at_once(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        offsets: list[int] = []
        async with log.consume("single", group=GROUP) as consumer:
            await log.produce_many("single", range(10))
            async for record in consumer:
                offsets.append(record.offset)
                if len(offsets) == 3:
                    consumer.seek(("single", 0), 8)
                if len(offsets) == 5:
                    consumer.seek(("single", 0), 1)
                if len(offsets) == 7:
                    break
            assert consumer.positions == {("single", 0): 3}
        assert offsets == [0, 1, 2, 8, 9, 1, 2]
        assert [found.offset for found in await log.groups.offsets(GROUP)] == [3], "also where that goes back"

    with_group(tmp_path, scenario)


def test_a_seek_does_not_wait_for_the_long_poll_that_is_under_way(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP) as consumer:
            await take(consumer, RECORDS)
            waiting = asyncio.create_task(consumer.chunk())
            await until(lambda: set(consumer.lag().values()) == {0})
            consumer.seek(("orders", 1), 7)
            assert [record.offset for record in await waiting] == [7, 8, 9]

    with_group(tmp_path, scenario, fetch_wait_ms_max=60_000)


def test_a_seek_when_it_is_assigned_decides_where_it_begins(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        def begin(partitions: list[tuple[str, int]]) -> None:
            for partition in partitions:
                consumer.seek(partition, 8)

        async with log.consume("orders", group=GROUP, on_assigned=begin) as consumer:
            assert sorted(await take(consumer, 6)) == list(range(24, 30))
            with pytest.raises(StaleMember, match="single/0 is not this member's"):
                consumer.seek(("single", 0), 8)
            with pytest.raises(InvalidArgument, match="no offset"):
                consumer.seek(("orders", 0), -1)

    with_group(tmp_path, scenario)


def test_a_paused_partition_hands_out_nothing_until_it_is_resumed_and_loses_nothing(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        values: list[int] = []
        async with log.consume("orders", group=GROUP) as consumer:
            async for record in consumer:
                values.append(record.json())
                if record.offset == 4 and not consumer.paused():
                    partition = record.topic, record.partition
                    consumer.pause(partition)
                if len(values) == 25:
                    break
            assert consumer.paused() == [partition]
            assert consumer.positions[partition] == 5
            consumer.resume()
            values += await take(consumer, 5)
        assert sorted(values) == list(range(RECORDS))

    with_group(tmp_path, scenario)


def test_a_consumer_that_pauses_a_partition_it_was_just_assigned_gets_nothing_of_it(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async def pause(partitions: list[tuple[str, int]]) -> None:
            consumer.pause(("orders", 1))

        async with log.consume("orders", group=GROUP, on_assigned=pause) as consumer:
            assert sorted(await take(consumer, 20)) == [n for n in range(RECORDS) if n % 3 != 1]
            assert consumer.lag() == {("orders", 0): 0, ("orders", 1): None, ("orders", 2): 0}
            consumer.resume(("orders", 1))
            assert await take(consumer, 10) == list(range(1, RECORDS, 3))
            assert consumer.lag() == dict.fromkeys(consumer.assignment(), 0)

    with_group(tmp_path, scenario)


# ── a caller that is slow, and one that is wrong ──


def test_a_consumer_that_takes_no_records_for_too_long_loses_its_partitions_and_reads_on_when_it_takes_some(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        lost = asyncio.Event()
        consumer = log.consume(
            "orders", group=GROUP, max_poll_interval_ms=200, auto_commit=False, on_lost=lambda partitions: lost.set()
        )
        async with consumer:
            first = await consumer.chunk()
            await lost.wait()
            await until_members(broker, 0)
            assert consumer.assignment() == []
            with pytest.raises(StaleMember, match=r"orders/\d went to other members of group billing before"):
                await consumer.commit()
            assert await committed(log) == {}
            again: set[int] = set()
            while len(again) < RECORDS:  # on a busy machine it may lose them once more
                again.update(record.json() for record in await consumer.chunk())
        assert again == {*range(RECORDS)}
        assert len(first) == 10

    with_group(tmp_path, scenario)


def test_nothing_is_handed_out_that_by_the_clock_may_be_anothers_and_nothing_is_skipped_where_it_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_frozen, asked = False, 0
    owned: Any = GroupMember.owned

    def owned_by_the_clock(member: GroupMember) -> Any:
        nonlocal asked
        asked += is_frozen
        return frozenset() if is_frozen else owned.fget(member)

    monkeypatch.setattr(GroupMember, "owned", property(owned_by_the_clock))

    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        nonlocal is_frozen
        values = []
        async with log.consume("orders", group=GROUP) as consumer:
            async for record in consumer:
                values.append(record.json())
                if len(values) == 14:
                    break
            is_frozen = True
            taking = asyncio.create_task(take(consumer, RECORDS - 14))
            await until(lambda: asked >= 5)
            assert not taking.done()
            is_frozen = False
            assert sorted(values + await taking) == list(range(RECORDS))

    with_group(tmp_path, scenario)


def test_a_caller_that_takes_its_records_slowly_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record that it takes counts, and not only each chunk."""
    monkeypatch.setattr(group_reader, "CALLER_CHECK_S_MAX", 0.01)
    times_polled = 0
    polled = GroupMember.polled

    def count(member: GroupMember) -> None:
        nonlocal times_polled
        times_polled += 1
        polled(member)

    monkeypatch.setattr(GroupMember, "polled", count)

    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        lost: list[object] = []
        async with log.consume("orders", group=GROUP, on_lost=lost.append) as consumer:
            count = 0
            async for _ in consumer:
                count += 1
                before = times_polled
                await until(lambda before=before: times_polled > before)  # type: ignore[misc]
                if count == RECORDS:
                    break
            assert times_polled >= RECORDS
        assert not lost
        assert await committed(log) == ALL

    with_group(tmp_path, scenario)


def test_a_caller_that_never_awaits_leaves_time_for_heartbeats(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        async with log.consume("single", group=GROUP) as consumer, asyncio.TaskGroup() as tasks:
            await log.produce_many("single", range(10))
            async for record in consumer:
                if record.offset == 0:
                    counting = tasks.create_task(count_turns())
                    turns_at_first = turns
                time.sleep(0.06)  # noqa: ASYNC251  # as who computes, and never awaits
                if record.offset == 9:
                    assert turns >= turns_at_first + 5
                    break
            counting.cancel()

    with_group(tmp_path, scenario)


def test_a_callback_whose_own_work_is_cancelled_raises_and_the_member_leaves(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async def wait(_: object) -> None:
            working = asyncio.ensure_future(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(working.cancel)
            await working

        with pytest.raises(Rejected, match="what a callback of group billing waited for was cancelled"):
            async for _ in log.consume("orders", group=GROUP, on_assigned=wait):
                pass
        await until_members(broker, 0)

    with_group(tmp_path, scenario)


def test_an_error_of_a_callback_reaches_the_caller_and_the_member_leaves(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        def fail(partitions: list[tuple[str, int]]) -> None:
            raise KeyError(partitions[0])

        with pytest.raises(KeyError, match="orders"):
            async for _ in log.consume("orders", group=GROUP, on_assigned=fail):
                pass
        await until_members(broker, 0)

    with_group(tmp_path, scenario)


def test_an_error_that_ends_the_reading_reaches_the_caller_and_the_member_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def denied(self: StartOffsets, *_: object, **__: object) -> None:
        raise Denied("not yours")

    monkeypatch.setattr(StartOffsets, "of", denied)

    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders", group=GROUP)
        with pytest.raises(Denied, match="not yours"):
            await consumer.chunk()
        await until_members(broker, 0)
        with pytest.raises(Denied, match="not yours"):
            await consumer.chunk()

    with_group(tmp_path, scenario)


def test_another_process_under_the_same_instance_id_ends_this_one(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with (
            connected(broker) as other,
            log.consume("orders", group=GROUP, instance_id="i1", heartbeat_interval_ms=200) as one,
        ):
            await take(one, RECORDS)
            async with other.consume("orders", group=GROUP, instance_id="i1") as two:
                await log.produce("orders", 30, partition=0)
                assert 30 in await take(two, RECORDS + 1)
                with pytest.raises(InstanceFenced):
                    await take(one, 1_000)

    with_group(tmp_path, scenario)


def test_an_option_that_does_not_go_with_a_group_is_refused_with_a_remedy(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        for wrong, message in (
            ({"from_": "latest"}, "from_ and partitions do not go with group"),
            ({"partitions": [0]}, "from_ and partitions do not go with group"),
            ({"group": ""}, "not a name for a consumer group"),
            ({"group": None, "auto_commit": False}, "auto_commit needs a group"),
            ({"auto_comit": False}, "no option 'auto_comit'"),
            ({"group": None, "frm": "latest"}, "no option 'frm'"),
            ({"assignors": ["stiky"]}, "no assignor 'stiky'"),
            ({"auto_commit_interval_ms": 0}, "must be above 0"),
        ):
            with pytest.raises(InvalidArgument, match=message):
                log.consume("orders", **{"group": GROUP, **wrong})  # type: ignore[call-overload]
        with pytest.raises(UnknownTopic, match="no topic order"):
            await log.consume(["orders", "order"], group=GROUP).chunk()
        async with log.consume("orders", group=GROUP) as consumer:
            await consumer.chunk()
            for offset in (-1, 2**63, 1.5, True):
                with pytest.raises(InvalidArgument, match="is no offset"):
                    consumer.seek(("orders", 0), offset)  # type: ignore[arg-type]
                with pytest.raises(InvalidArgument, match="is no offset"):
                    await consumer.commit({("orders", 0): offset})  # type: ignore[dict-item]
            assert await consumer.chunk(), "it reads on"

    with_group(tmp_path, scenario)
