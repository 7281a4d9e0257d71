"""What a member of a group has processed, and what of that is committed, whenever and however its reading ends."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tidelog
from metadata.errors import (
    InvalidArgument,
    OutcomeUnknown,
    RebalanceInProgress,
    Rejected,
    StaleGeneration,
    StaleMember,
    Unavailable,
)
from tests.kit.gateway.small_broker import SmallBroker
from tests.kit.tidelog.consuming import until
from tests.kit.tidelog.grouping import GROUP, QUICK, RECORDS, committed, connected, take, until_members, with_group
from tidelog.consumer.refusal_patience import RefusalPatience
from tidelog.consumer.subscription import Subscription
from tidelog.group.coordinator_client import GrpcCoordinatorClient

pytestmark = pytest.mark.slow

ALL = {0: 10, 1: 10, 2: 10}

# ── what counts as processed ──


def test_the_record_in_hand_counts_when_its_block_ends_well(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP) as consumer:
            async for record in consumer:
                if record.offset == 4:
                    break
        assert (await committed(log))[record.partition] == 5

    with_group(tmp_path, scenario)


def test_and_comes_again_when_its_block_is_left_by_an_error(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        with suppress(KeyError):
            async with log.consume("orders", group=GROUP) as consumer:
                async for record in consumer:
                    if record.offset == 4:
                        raise KeyError
        assert (await committed(log))[record.partition] == 4
        async with log.consume("orders", group=GROUP, until="end") as consumer:
            again = [(record.partition, record.offset) async for record in consumer]
        assert (record.partition, 4) in again

    with_group(tmp_path, scenario)


def test_a_chunk_in_hand_comes_again_as_a_whole(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        with suppress(KeyError):
            async with log.consume("orders", group=GROUP) as consumer:
                first, second = await consumer.chunk(), await consumer.chunk()
                raise KeyError
        offsets = await committed(log)
        assert offsets[first[0].partition] == 10
        assert offsets[second[0].partition] == 0

    with_group(tmp_path, scenario)


def test_a_loop_without_a_block_of_its_own_leaves_the_group_and_what_it_had_in_hand_comes_again(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async for record in log.consume("orders", group=GROUP):
            if record.offset == 4:
                break
        await until_members(broker, 0)
        assert (await committed(log))[record.partition] == 4

    with_group(tmp_path, scenario)


def test_a_loop_that_is_left_within_the_block_can_be_gone_on_with(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        values = []
        async with log.consume("orders", group=GROUP) as consumer:
            for _ in range(4):
                async for record in consumer:
                    values.append(record.json())
                    if len(values) % 5 == 0:
                        break
            values += await take(consumer, RECORDS - len(values))
        assert sorted(values) == list(range(RECORDS))

    with_group(tmp_path, scenario)


def test_leaving_the_client_leaves_the_group(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with connected(broker) as other:
            consumer = other.consume("orders", group=GROUP)
            await take(consumer, RECORDS)
            await until_members(broker, 1)
        await until_members(broker, 0)
        assert sum((await committed(log)).values()) == 20, "the last chunk was in hand"
        with pytest.raises(Rejected, match=r"closed|ended before its end"):
            await consumer.chunk()

    with_group(tmp_path, scenario)


def test_a_wait_for_records_is_rejected_when_the_member_is_closed(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("single", group=GROUP) as consumer:
            waiting = asyncio.create_task(consumer.chunk())
            await until(lambda: consumer.positions == {("single", 0): 0})
            closing = asyncio.create_task(consumer.aclose())
            await log.produce("single", 1)
            with pytest.raises(Rejected, match="ended before its end"):
                await waiting
            await closing
            await until_members(broker, 0)
            with pytest.raises(Rejected, match="before its end"):
                await consumer.chunk()

    with_group(tmp_path, scenario)


def test_a_close_does_not_wait_while_no_broker_answers_for_the_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        asked = asyncio.Event()

        async def unavailable(*_: object, **__: object) -> dict[str, int]:
            asked.set()
            raise Unavailable("no broker answers")

        monkeypatch.setattr(Subscription, "partition_counts", unavailable)
        consumer = log.consume("orders", group=GROUP)
        waiting = asyncio.create_task(consumer.chunk())
        await asked.wait()
        async with asyncio.timeout(20):
            await consumer.aclose()
        with pytest.raises(Rejected, match="before its end"):
            await waiting

    with_group(tmp_path, scenario)


@pytest.mark.parametrize("leaves_client", [True, False])
def test_a_member_that_is_ended_before_it_could_commit_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, leaves_client: bool
) -> None:
    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with connected(broker, {**QUICK, "request_timeout_ms": 500}) as other:
            consumer = other.consume("orders", group=GROUP)
            await take(consumer, RECORDS)
            monkeypatch.setattr(GrpcCoordinatorClient, "commit", silent)
            if not leaves_client:
                await consumer.aclose()
        assert "member ended without its last commit group=billing: it could not commit and leave within 0.5 s" in caplog.text

    with_group(tmp_path, scenario)


def test_a_member_that_is_forgotten_leaves_the_group(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        consumer = log.consume("orders", group=GROUP)
        await consumer.chunk()
        del consumer
        gc.collect()
        await until_members(broker, 0)

    with_group(tmp_path, scenario)


# ── commits ──


def test_processed_records_are_committed_in_the_background_and_the_one_in_hand_never(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP, auto_commit_interval_ms=10) as consumer:
            async for record in consumer:
                if record.offset == 4:
                    while (await committed(log)).get(record.partition) != 4:  # noqa: ASYNC110  # no event shows it
                        await asyncio.sleep(0.01)
                    break

    with_group(tmp_path, scenario)


def test_a_consumer_that_commits_by_itself_commits_what_was_handed_out(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP, auto_commit=False) as consumer:
            async for record in consumer:
                if record.offset == 4:
                    await consumer.commit()
                    assert (await committed(log))[record.partition] == 5
                    break
            partition = record.topic, record.partition
            async for record in consumer:
                if record.offset == 7:
                    await consumer.commit(record)
                    assert await consumer.committed(partition) == {partition: 8}
                    await consumer.commit({partition: 2})
                    assert (await committed(log))[record.partition] == 2
                    break
        assert (await committed(log))[record.partition] == 2, "nothing is committed unasked"

    with_group(tmp_path, scenario)


@pytest.mark.parametrize("as_chunk", [True, False])
def test_a_commit_of_the_record_in_hand_does_not_go_back_however_its_block_is_left(tmp_path: Path, as_chunk: bool) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        with suppress(KeyError):
            async with log.consume("orders", group=GROUP) as consumer:
                if as_chunk:
                    record = (await consumer.chunk())[4]
                else:
                    async for record in consumer:
                        if record.offset == 4:
                            break
                await consumer.commit(record)
                raise KeyError
        assert (await committed(log))[record.partition] == 5

    with_group(tmp_path, scenario)


def test_a_partition_that_comes_back_while_a_commit_is_under_way_begins_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a member that was not heard of for long, and comes back in the generation that it was in: its commit still counts."""
    lands = asyncio.Event()
    real = GrpcCoordinatorClient.commit

    async def late(*args: Any) -> Any:
        await lands.wait()
        return await real(*args)

    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("single", group=GROUP, auto_commit=False) as consumer:
            await log.produce_many("single", range(10))
            records = await consumer.chunk()
            owned = frozenset(consumer.assignment())
            monkeypatch.setattr(GrpcCoordinatorClient, "commit", late)
            committing = asyncio.create_task(consumer.commit(records[-1]))
            reading = consumer._reading
            await until(reading.commits._turn.locked)
            read, under_way = reading._starts.of, list[bool]()

            async def of(partitions: Any, patience: RefusalPatience, *, from_store: bool = False) -> Any:
                under_way.append(reading.commits._turn.locked())
                return await read(partitions, patience)

            monkeypatch.setattr(reading._starts, "of", of)
            await reading.lost(owned)
            await reading.assigned(owned)
            for _ in range(10):
                await asyncio.sleep(0)
            lands.set()
            await until(lambda: owned <= consumer.positions.keys())
            await committing
            assert under_way == [False], "where it begins is asked for after the commit has ended"
            assert consumer.positions == {("single", 0): records[-1].offset + 1}

    with_group(tmp_path, scenario)


def test_an_offset_carries_the_leader_epoch_of_its_record(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP) as consumer:
            await take(consumer, RECORDS)
        assert {found.leader_epoch for found in await log.groups.offsets(GROUP)} == {7}

    with_group(tmp_path, scenario)


def test_an_offset_of_a_partition_that_is_not_owned_is_not_committed(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP) as consumer:
            await consumer.chunk()
            with pytest.raises(StaleMember, match="single/0 is not read by this member"):
                await consumer.commit({("single", 0): 3})
            with pytest.raises(InvalidArgument):
                await consumer.commit({("orders", 0): -3})
            assert await consumer.committed(("single", 0)) == {("single", 0): None}

    with_group(tmp_path, scenario)


@pytest.mark.parametrize("refusal", [RebalanceInProgress, StaleGeneration])
def test_a_commit_in_the_middle_of_a_rebalance_waits_for_its_end_also_that_of_a_member_that_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: type[StaleMember]
) -> None:
    refusals = 0
    commit = GrpcCoordinatorClient.commit

    async def refused_twice(self: GrpcCoordinatorClient, *asked: Any) -> Any:
        nonlocal refusals
        if refusals % 3 < 2:
            refusals += 1
            raise refusal("the group is rebalancing")
        return await commit(self, *asked)

    monkeypatch.setattr(GrpcCoordinatorClient, "commit", refused_twice)

    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        nonlocal refusals
        async with log.consume("orders", group=GROUP) as consumer:
            await take(consumer, 10)
            await consumer.commit()
            assert (refusals, sum((await committed(log)).values())) == (2, 10)
            await take(consumer, 20)
            refusals = 0
        assert (refusals, await committed(log)) == (2, ALL)

    with_group(tmp_path, scenario)


def test_offsets_that_could_not_be_committed_are_committed_with_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, faults = GrpcCoordinatorClient.commit, [Unavailable("the coordinator is away"), OutcomeUnknown("no answer")]

    async def failing(self: GrpcCoordinatorClient, *asked: Any) -> Any:
        if faults:
            raise faults.pop(0)
        return await commit(self, *asked)

    monkeypatch.setattr(GrpcCoordinatorClient, "commit", failing)

    async def scenario(broker: SmallBroker, log: tidelog.Client) -> None:
        async with log.consume("orders", group=GROUP, auto_commit=False) as consumer:
            await take(consumer, RECORDS)
            for error in (Unavailable, OutcomeUnknown):
                with pytest.raises(error):
                    await consumer.commit()
            await consumer.commit()
        assert await committed(log) == ALL

    with_group(tmp_path, scenario)
