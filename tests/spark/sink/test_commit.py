"""A batch of the sink is written once, whichever process is killed, and however often Spark retries."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from unittest.mock import AsyncMock

import pytest

from metadata.errors import (
    Fenced,
    InvalidArgument,
    InvalidTimestamp,
    OutcomeUnknown,
    Rejected,
    Throttled,
    TidelogError,
    Unavailable,
)
from segments.bucket.layout import chosen_key, done_key
from segments.object_store.interface import Buffer
from segments.partition.producer_state import BATCHES_REMEMBERED
from spark.sink import delivery
from spark.sink.brokers import Append, StagedTopicGone
from spark.sink.commit import discard, newest_done
from spark.sink.partition_progress import ForgottenError
from spark.sink.row_encoder import TopicFacts
from spark.sink.staged_files import StagedFile, StagedPartition, counted
from tests.kit.spark.sink_world import EXPIRY_MS, HOUR_MS, WRITE, World, expected, killed, total_records
from tests.simulation.virtual_loop import run

FIRST = [f"a{n}" for n in range(40)]
SECOND = [f"b{n}" for n in range(40)]


async def committed(world: World, *, batch: int = 0) -> None:
    files = [await world.stage(FIRST, batch=batch), await world.stage(SECOND, batch=batch)]
    await world.commit(files, batch=batch)


async def steps_of_a_commit() -> list[str]:
    world = World()
    await committed(world)
    return world.steps.taken


STEPS = run(steps_of_a_commit())


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(len(STEPS)), ids=[step.split("/")[0] + str(at) for at, step in enumerate(STEPS)])
def test_a_driver_that_is_killed_at_any_step_and_run_again_with_other_tasks_writes_each_row_once(step: int, after: bool) -> None:
    async def test(world: World) -> None:
        world.steps.crash_at, world.steps.crash_after = step, after
        with killed():
            await committed(world)
        world.revive()
        # Spark cuts the same rows into other tasks, in another order
        rows = [*reversed(SECOND), *FIRST]
        files = [await world.stage(rows[:7]), await world.stage(rows[7:], rows_per_batch=9)]
        done = await world.commit(files)
        assert done is not None
        assert done.records == 80
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST, *SECOND)
        assert world.keys() == [chosen_key(WRITE, 0), done_key(WRITE, 0)]

    run(test(World()))


def test_the_steps_of_a_commit_are_those_that_are_drawn() -> None:
    reported = [
        step.split(" ")[0] + " " + step.rsplit("/", 1)[-1].split("-")[0] for step in STEPS if not step.startswith("produce")
    ]
    assert reported == [
        "get done", "create chosen", "list ", "get rows", "get rows", "create done", "list ", "delete rows", "delete rows",
    ]  # fmt: skip


def test_rows_keep_their_order_in_each_partition() -> None:
    async def test(world: World) -> None:
        await committed(world)
        for held in world.brokers.held.values():
            values = [value for value in held.values if value is not None]
            assert values == sorted(values, key=lambda value: (value[:1], int(value[1:])))

    run(test(World()))


def test_of_two_drivers_that_commit_at_the_same_time_one_chooses_for_both() -> None:
    async def test(world: World) -> None:
        ours, theirs = [await world.stage([*FIRST, *SECOND])], [await world.stage(SECOND), await world.stage(FIRST)]
        done = await asyncio.gather(world.commit(ours), world.commit(theirs))
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST, *SECOND)
        assert done[0] == done[1]
        assert world.keys() == [chosen_key(WRITE, 0), done_key(WRITE, 0)]

    run(test(World()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_drivers_that_race_lose_answers_and_are_killed_at_any_moment_write_each_row_once(seed: int) -> None:
    chance = random.Random(seed)

    async def attempt(world: World, batch: int, rows: list[str]) -> None:
        """Spark cuts the rows into other tasks each time."""
        mixed = chance.sample(rows, len(rows))
        cuts = sorted(chance.sample(range(len(rows)), chance.randint(0, 3)))
        parts = [mixed[start:end] for start, end in pairwise([0, *cuts, len(rows)]) if start < end]
        files = [await world.stage(part, batch=batch, rows_per_batch=chance.randint(1, 9)) for part in parts]
        await world.commit(files, batch=batch)

    async def attempts(world: World, batch: int, rows: list[str]) -> None:
        drivers = [asyncio.create_task(attempt(world, batch, rows)) for _ in range(chance.randint(1, 2))]
        world.brokers.lost_answers = [OutcomeUnknown("reset") for _ in range(chance.randint(0, 3))]
        world.steps.kills = {len(world.steps.taken) + chance.randint(0, 40): driver for driver in drivers}
        ends = await asyncio.gather(*drivers, return_exceptions=True)
        assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends), ends

    async def test(world: World) -> None:
        written: list[str] = []
        for batch in range(3):
            rows = [f"{batch}-{n}" for n in range(chance.randint(4, 120))]
            for _ in range(chance.randint(0, 3)):
                await attempts(world, batch, rows)
            await attempt(world, batch, rows)
            written += rows
            assert sorted(filter(None, world.brokers.values())) == expected(*written)
        newest = await newest_done(world.store, WRITE)
        assert newest is not None
        assert total_records(newest) == len(written)
        assert {count.partition: count.records for count in newest.total} == {
            partition: len(held.values) for (_, partition), held in world.brokers.held.items() if held.values
        }
        assert world.keys() == [chosen_key(WRITE, 2), done_key(WRITE, 2)]

    run(test(World()), seed=seed, shuffled=True)


def test_a_batch_that_was_done_is_not_written_again() -> None:
    async def test(world: World) -> None:
        await committed(world)
        requests = len(world.brokers.requests)
        again = await world.commit([await world.stage(FIRST + SECOND)])
        assert again is not None
        assert again.records == 80
        assert len(world.brokers.requests) == requests
        assert len(world.brokers.values()) == 80

    run(test(World()))


def test_batches_follow_each_other_and_the_newest_counts_all_that_the_query_has_written() -> None:
    async def test(world: World) -> None:
        for batch in range(3):
            await world.commit([await world.stage([f"{batch}-{n}" for n in range(10)], batch=batch)], batch=batch)
        assert await world.commit([], batch=3) is None
        newest = await newest_done(world.store, WRITE)
        assert newest is not None
        assert (newest.batch, newest.first_batch, newest.records, total_records(newest)) == (2, 0, 10, 30)
        assert world.keys() == [chosen_key(WRITE, 2), done_key(WRITE, 2)]
        assert all(len(held.producers) == 1 for held in world.brokers.held.values())

    run(test(World()))


def test_a_former_driver_cannot_go_back_to_an_earlier_batch() -> None:
    async def test(world: World) -> None:
        for batch in range(2):
            await world.commit([await world.stage(FIRST, batch=batch)], batch=batch)
        with pytest.raises(Fenced, match=r"batch 1 of the same query is there already\. This attempt has sent nothing"):
            await world.commit([await world.stage(SECOND, batch=0)], batch=0)
        assert len(world.brokers.values()) == 80

    run(test(World()))


def test_a_driver_that_slept_while_a_later_batch_was_written_is_fenced_by_the_brokers() -> None:
    async def test(world: World) -> None:
        files = [await world.stage(FIRST, batch=0)]
        world.steps.crash_at = STEPS.index(f"list spark/{WRITE}/") + 1  # chosen, and it has looked
        with killed():
            await world.commit(files, batch=0)
        world.revive()
        others = World()
        others.brokers.held = world.brokers.held
        await others.commit([await others.stage(SECOND, batch=1)], batch=1)  # on a bucket that has no trace of it
        with pytest.raises(Fenced, match="a later batch of this query was written"):
            await world.commit(files, batch=0)
        assert sorted(filter(None, world.brokers.values())) == expected(*SECOND)

    run(test(World()))


@pytest.mark.parametrize(
    "error", [OutcomeUnknown("reset"), Unavailable("down"), Throttled("full", retry_after_s=0.01)], ids=lambda e: type(e).__name__
)
def test_batches_without_an_answer_are_sent_again_to_the_present_leader(error: Exception) -> None:
    async def test(world: World) -> None:
        world.brokers.lost_answers = [error, error]  # type: ignore[list-item]  # the test's own
        await committed(world)
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST, *SECOND)
        assert world.brokers.asked_afresh > 1

    run(test(World()))


def test_an_attempt_goes_on_where_the_brokers_say_that_an_earlier_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PARTITION_BATCHES", 3)

    async def test(world: World) -> None:
        files = [await world.stage(FIRST, rows_per_batch=1), await world.stage(SECOND, rows_per_batch=1)]
        world.steps.crash_at = 14
        with killed():
            await world.commit(files)
        written = {where: held.batches for where, held in world.brokers.held.items()}
        assert max(written.values()) > 5, "more than brokers remember of a producer"
        assert 0 < len(world.brokers.values()) < 80
        world.revive()
        await world.commit([await world.stage(FIRST + SECOND)])
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST, *SECOND)

    run(test(World()))


def test_a_request_of_more_batches_than_brokers_remember_may_come_again() -> None:
    async def test(world: World) -> None:
        files = [await world.stage(FIRST, rows_per_batch=1), await world.stage(SECOND, rows_per_batch=1)]
        world.brokers.lost_answers = [OutcomeUnknown("reset") for _ in range(6)]
        await world.commit(files)
        assert max(len(request) for request in world.brokers.requests) > 3 * BATCHES_REMEMBERED
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST, *SECOND)

    run(test(World()))


@pytest.mark.parametrize("ahead", [1, 3000, 1 << 30])
def test_a_commit_reads_ahead_within_a_bound_and_reads_no_rows_that_are_in_their_topic_already(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "READ_AHEAD_BYTES", ahead)
    monkeypatch.setattr(delivery, "PARTITION_BATCHES", 3)

    async def test(world: World) -> None:
        rows = [[f"{task}-{n}" for n in range(30)] for task in range(40)]
        files = [await world.stage(values, rows_per_batch=5) for values in rows]
        world.steps.crash_at = 70
        with killed():
            await world.commit(files)
        world.revive()
        begun, there = len(world.steps.taken), len(world.brokers.values())
        assert 0 < there < 1200
        await world.commit([])
        assert sorted(filter(None, world.brokers.values())) == expected(*(value for values in rows for value in values))
        read = sum(step.startswith("get") and "rows-" in step for step in world.steps.taken[begun:])
        assert read < 40 or ahead > 3000

    run(test(World()))


def test_rows_that_brokers_may_have_forgotten_are_not_sent_blindly() -> None:
    async def test(world: World) -> None:
        world.steps.crash_at = STEPS.index("create " + done_key(WRITE, 0))
        with killed():
            await committed(world)
        world.revive()
        world.clock.now += EXPIRY_MS - 2 * HOUR_MS
        with pytest.raises(ForgottenError) as refused:
            await world.commit([await world.stage(FIRST + SECOND)])
        assert "could not be written" in refused.value.message
        assert "So far the rows of 0 of 3 partitions are in their topic, of others some may be" in refused.value.message
        assert chosen_key(WRITE, 0) in refused.value.hint
        assert not refused.value.retryable
        assert len(world.brokers.values()) == 80

    run(test(World()))


def test_a_leader_that_forgets_the_producer_on_the_way_ends_the_attempt() -> None:
    async def test(world: World) -> None:
        def forgets(_: Append) -> TidelogError | None:
            for held in world.brokers.held.values():
                held.producers = type(held.producers)(producers_max=10, expiry_ms=EXPIRY_MS)
            return None

        world.brokers.faults = [*[lambda _: None] * 7, forgets]
        with pytest.raises(ForgottenError, match="has forgotten who writes there, after"):
            await committed(world)

    run(test(World()))


def test_brokers_that_are_away_leave_a_batch_for_the_next_attempt() -> None:
    async def test(world: World) -> None:
        away = AsyncMock()
        away.__aenter__.side_effect = Unavailable("http://b:8080: can't connect. Nothing was sent")
        files = [await world.stage(FIRST)]
        connect, world.brokers.connect = world.brokers.connect, lambda: away  # type: ignore[method-assign]  # the test's own
        with pytest.raises(Unavailable) as failed:
            await world.commit(files)
        assert failed.value.message.endswith("Nothing was sent. This attempt has sent nothing")
        assert failed.value.hint.startswith("Run the query again from its checkpoint and the rest follows")
        world.brokers.connect = connect  # type: ignore[method-assign]  # the test's own
        await world.commit(files)
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST)

    run(test(World()))


def test_staged_rows_that_were_collected_meanwhile_are_reported() -> None:
    async def test(world: World) -> None:
        file = await world.stage(FIRST)
        await world.store.delete(file.key)
        with pytest.raises(Rejected, match="staged rows are gone from the bucket"):
            await world.commit([file])

    run(test(World()))


def test_a_choice_that_arrives_after_its_rows_were_discarded_is_reported_with_a_remedy() -> None:
    async def test(world: World) -> None:
        create, late = world.store.create, []

        async def no_answer(key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
            late.append((key, body))
            raise OutcomeUnknown(f"{key}: no answer")

        file = await world.stage(FIRST)
        world.store.create = no_answer  # type: ignore[method-assign]  # the test's own
        with pytest.raises(OutcomeUnknown):
            await world.commit([file])
        world.store.create = create  # type: ignore[method-assign]  # the test's own
        await discard(world.store, WRITE, 0, [file], now_ms=world.clock)
        await create(*late[0])
        with pytest.raises(Rejected, match="staged rows are gone from the bucket") as failed:
            await world.commit([await world.stage(FIRST)])
        assert f"Where none of the rows are there, delete {chosen_key(WRITE, 0)} on {world.store.url}" in failed.value.hint
        await world.store.delete(chosen_key(WRITE, 0))
        await world.commit([await world.stage(FIRST)])
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST)

    run(test(World()))


def test_a_batch_has_fewer_rows_for_a_partition_than_there_are_sequences() -> None:
    where = StagedPartition("orders", "a" * 32, 0)
    files = [StagedFile(str(number), 0, 0, ((where, 2**30),)) for number in range(2)]
    assert counted(files[:1]) == {where: 2**30}
    with pytest.raises(InvalidArgument, match="2147483648 rows are for orders/0; a batch takes fewer"):
        counted(files)


def test_a_partition_that_takes_little_at_a_time_is_not_given_up() -> None:
    async def test(world: World) -> None:
        asked: Counter[StagedPartition] = Counter()

        def every_other(append: Append) -> TidelogError | None:
            asked[append.where] += 1
            return None if asked[append.where] % 2 else Throttled("full", retry_after_s=0.01)

        world.brokers.faults = [every_other] * 10_000
        rows = [f"{n}" for n in range(200)]  # many times the pause for each of them: far more than a partition's patience
        await world.commit([await world.stage(rows, rows_per_batch=1)])
        assert sorted(filter(None, world.brokers.values())) == expected(*rows)

    run(test(World()))


def test_a_broker_that_does_not_know_the_partition_yet_is_waited_for() -> None:
    async def test(world: World) -> None:
        leader_of, lags = world.brokers.leader_of, [True, True]

        async def lagging(where: StagedPartition, *, fresh: bool = False) -> str:
            if lags and lags.pop():
                raise Unavailable(f"{where}: the brokers do not know the partition yet")
            return await leader_of(where, fresh=fresh)

        world.brokers.leader_of = lagging  # type: ignore[method-assign]  # the test's own
        await committed(world)
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST, *SECOND)

    run(test(World()))


def test_a_recreated_topic_is_refused_before_and_after_rows_are_chosen() -> None:
    async def test(world: World) -> None:
        files = [await world.stage(FIRST)]
        world.brokers.topic_ids["orders"] = "c" * 32
        with pytest.raises(Unavailable, match="deleted and made again") as failed:
            await world.commit(files)
        assert failed.value.hint.startswith("Run the query again from its checkpoint and the rest follows")
        assert world.keys() == [file.key for file in files]

        world.brokers.topic_ids["orders"] = "a" * 32
        world.steps.crash_at = len(world.steps.taken) + 4
        with killed():
            await world.commit(files)
        world.revive()
        world.brokers.topic_ids["orders"] = "c" * 32
        with pytest.raises(Rejected, match="deleted and made again"):
            await world.commit([])
        assert world.brokers.values() == []

    run(test(World()))


def test_nothing_is_chosen_for_a_former_topic_although_the_broker_that_is_asked_for_its_leader_describes_it() -> None:
    async def test(world: World) -> None:
        files = [await world.stage(FIRST)]
        world.brokers.leader_of = AsyncMock(return_value="a")  # type: ignore[method-assign]  # the test's own
        world.brokers.check_present = AsyncMock(side_effect=StagedTopicGone("made again"))  # type: ignore[method-assign]  # as above
        with pytest.raises(Unavailable, match="made again") as failed:
            await world.commit(files)
        assert "Its rows are staged again then." in failed.value.hint
        assert world.keys() == [file.key for file in files]

    run(test(World()))


async def chosen_for_a_former_topic(world: World, rows: Sequence[str], *, sent: int = 0) -> StagedFile:
    """Chooses rows for a topic that is deleted and made again then, after this many requests were sent to it."""
    file = await world.stage(rows)
    world.steps.crash_at = 4 + sent  # it has chosen, has looked for later batches, and has read its rows
    with killed():
        await world.commit([file])
    world.revive()
    assert chosen_key(WRITE, 0) in world.keys()  # noqa: SIM118  # no mapping
    world.recreate()
    return file


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_a_batch_that_was_chosen_for_a_topic_which_was_made_again_is_chosen_again_where_rows_may_be_lost(sent: int) -> None:
    async def test(world: World) -> None:
        former = world.brokers.topic_ids["orders"]
        file = await chosen_for_a_former_topic(world, FIRST, sent=sent)
        assert world.brokers.requests == [] or sent
        present = world.brokers.topic_ids["orders"]
        with pytest.raises(StagedTopicGone) as refused:
            await world.commit([await world.stage(FIRST)])
        assert refused.value.hint == "Begin a new checkpoint. Or set failOnDataLoss to false to write the batch to the new topic."
        world.steps.crash_at = len(world.steps.taken) + 8
        with killed():
            await world.commit([await world.stage(FIRST[::-1])], fails_on_loss=False)
        world.revive()
        assert chosen_key(WRITE, 0, present) in world.keys()  # noqa: SIM118  # no mapping
        with pytest.raises(Unavailable, match="made again"):  # the first attempt wakes up
            await world.commit([file], fails_on_loss=False)
        done = await world.commit([await world.stage(FIRST)], fails_on_loss=False)
        assert done is not None
        assert {count.topic_id for count in done.total} == {present} != {former}
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST)
        await world.commit([await world.stage(SECOND, batch=1)], batch=1)
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST, *SECOND)
        assert world.keys() == [chosen_key(WRITE, 1), done_key(WRITE, 1)]

    run(test(World()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_drivers_that_race_over_topics_that_are_made_again_write_no_row_twice_and_the_last_one_all(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of them see a former topic for a while, as by brokers that lag."""
    monkeypatch.setattr(delivery, "PARTITION_BATCHES", 1)
    chance = random.Random(seed)

    async def attempt(world: World, topic_id: str, rows: list[str]) -> None:
        """Stages rows for this topic, which the check before the choice takes for the present one."""
        facts, world.facts["orders"] = world.facts["orders"], TopicFacts("orders", topic_id, 3, 1 << 20)
        mixed = chance.sample(rows, len(rows))
        cut = chance.randint(1, len(rows) - 1)
        files = [await world.stage(part, rows_per_batch=chance.randint(1, 4)) for part in (mixed[:cut], mixed[cut:])]
        world.facts["orders"] = facts
        await world.commit(files, fails_on_loss=False)

    async def test(world: World) -> None:
        world.brokers.check_present = AsyncMock()  # type: ignore[method-assign]  # the test's own
        rows = [f"{n}" for n in range(chance.randint(10, 60))]
        ids = [world.brokers.topic_ids["orders"]]
        for _ in range(chance.randint(2, 5)):
            seen = [chance.choice(ids[-2:]) for _ in range(chance.randint(1, 3))]
            drivers = [asyncio.create_task(attempt(world, topic_id, rows)) for topic_id in seen]
            world.brokers.lost_answers = [OutcomeUnknown("reset") for _ in range(chance.randint(0, 2))]
            world.steps.kills = {len(world.steps.taken) + chance.randint(0, 40): driver for driver in drivers}
            if chance.random() < 0.4:
                await asyncio.sleep(chance.random() / 100)
                world.recreate()
                ids.append(world.brokers.topic_ids["orders"])
            ends = await asyncio.gather(*drivers, return_exceptions=True)
            assert all(end is None or isinstance(end, asyncio.CancelledError | StagedTopicGone) for end in ends), ends
            values = list(filter(None, world.brokers.values()))
            assert len(values) == len(set(values))
        world.steps.kills = {}
        await attempt(world, ids[-1], rows)
        done = await newest_done(world.store, WRITE)
        assert done is not None
        if {count.topic_id for count in done.total} == {ids[-1]}:  # else all were written to a former topic, and are lost with it
            assert sorted(filter(None, world.brokers.values())) == expected(*rows)

    run(test(World()), seed=seed, shuffled=True)


def test_a_batch_of_several_topics_of_which_one_was_made_again_is_not_chosen_again() -> None:
    """Its rows may be in the other topic already."""

    async def test(world: World) -> None:
        files = [await world.stage(FIRST), await world.stage(SECOND, topic="payments")]
        world.steps.crash_at = 4
        with killed():
            await world.commit(files)
        world.revive()
        world.recreate()
        files = [await world.stage(FIRST), await world.stage(SECOND, topic="payments")]
        with pytest.raises(StagedTopicGone):
            await world.commit(files, fails_on_loss=False)
        assert world.brokers.values() == []

    run(test(World()))


async def written_before_a_recreation(world: World) -> None:
    """Writes two batches to a topic that is deleted and made again then."""
    for batch in range(2):
        await world.commit([await world.stage([f"{batch}-{n}" for n in range(10)], batch=batch)], batch=batch)
    world.recreate()


@pytest.mark.parametrize("batch", [2, 3], ids=["next", "after an empty batch"])
def test_a_stream_is_refused_whose_topic_was_made_again_after_it_had_written_to_it(batch: int) -> None:
    async def test(world: World) -> None:
        await written_before_a_recreation(world)
        files = [await world.stage(FIRST, batch=batch)]
        with pytest.raises(
            Rejected, match=r"topic orders was deleted and made again .*: 20 rows that this query has written"
        ) as failed:
            await world.commit(files, batch=batch)
        assert "failOnDataLoss" in failed.value.hint
        assert world.brokers.values() == []
        assert chosen_key(WRITE, batch) not in world.keys()  # noqa: SIM118  # no mapping

    run(test(World()))


def test_a_stream_that_passes_over_lost_data_goes_on_with_the_new_topic_and_counts_it_alone() -> None:
    async def test(world: World) -> None:
        await written_before_a_recreation(world)
        await world.commit([await world.stage(FIRST, batch=2)], batch=2, fails_on_loss=False)
        await world.commit([await world.stage(SECOND, batch=3)], batch=3)
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST, *SECOND)
        newest = await newest_done(world.store, WRITE)
        assert newest is not None
        assert (newest.first_batch, total_records(newest)) == (0, 80)

    run(test(World()))


def test_a_batch_that_another_attempt_chose_is_sent_to_no_topic_that_was_made_again() -> None:
    async def test(world: World) -> None:
        await written_before_a_recreation(world)
        world.steps.crash_at = len(world.steps.taken) + 3  # it has chosen
        with killed():
            await world.commit([await world.stage(FIRST, batch=2)], batch=2, fails_on_loss=False)
        world.revive()
        assert chosen_key(WRITE, 2) in world.keys()  # noqa: SIM118  # no mapping
        with pytest.raises(Rejected, match="topic orders was deleted and made again"):
            await world.commit([], batch=2)
        await world.commit([], batch=2, fails_on_loss=False)
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST)

    run(test(World()))


def test_a_stream_goes_on_with_a_new_topic_only_once_a_broker_confirms_it() -> None:
    async def test(world: World) -> None:
        await written_before_a_recreation(world)
        world.brokers.leader_of = AsyncMock(side_effect=Unavailable("no leader"))  # type: ignore[method-assign]  # the test's own
        files = [await world.stage(FIRST, batch=2)]
        with pytest.raises(Unavailable, match="no leader"):
            await world.commit(files, batch=2, fails_on_loss=False)
        assert chosen_key(WRITE, 2) not in world.keys()  # noqa: SIM118  # no mapping

    run(test(World()))


@pytest.mark.parametrize("away", [True, False], ids=["leaders away", "leaders there"])
@pytest.mark.parametrize("former_first", [True, False])
def test_rows_for_a_topic_and_for_its_successor_are_not_chosen_together(former_first: bool, away: bool) -> None:
    """Tasks that read the topic from a column may stage rows before and after it is made again."""

    async def test(world: World) -> None:
        former = await world.stage(FIRST)
        world.recreate()
        files = [former, await world.stage(SECOND)]
        leader_of = world.brokers.leader_of
        if away:
            world.brokers.leader_of = AsyncMock(side_effect=Unavailable("no leader"))  # type: ignore[method-assign]  # the test's own
        with pytest.raises(Unavailable, match="no leader" if away else "deleted and made again"):
            await world.commit(files if former_first else files[::-1])
        assert world.keys() == sorted(file.key for file in files)
        world.brokers.leader_of = leader_of  # type: ignore[method-assign]  # the test's own
        await world.commit([await world.stage(FIRST + SECOND)])
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST, *SECOND)

    run(test(World()))


def test_a_failure_reports_how_much_is_written_and_what_to_do() -> None:
    async def test(world: World) -> None:
        down = Unavailable("10.0.0.7:9090: can't connect", hint="Check the address.")
        world.brokers.faults = [lambda append: down if append.where.partition == 2 else None] * 10_000
        with pytest.raises(Unavailable) as failed:
            await committed(world)
        assert failed.value.message == (
            "batch 0 of query q could not be written: 10.0.0.7:9090: can't connect. "
            "So far the rows of 2 of 3 partitions are in their topic, of others some may be"
        )
        assert failed.value.hint == (
            "Run the query again from its checkpoint and the rest follows; nothing is doubled. Check the address."
        )
        world.brokers.faults = []
        await world.commit([await world.stage(SECOND + FIRST)])
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST, *SECOND)

    run(test(World()))


def test_rows_that_a_broker_refuses_for_their_dates_follow_once_it_takes_them() -> None:
    """The executor's clock was ahead of the broker's, or the topic takes less since they were staged."""

    async def test(world: World) -> None:
        ahead = InvalidTimestamp("dated too far ahead", hint="Look at the clock.")
        world.brokers.faults = [lambda append: ahead if append.where.partition == 2 else None] * 10_000
        with pytest.raises(InvalidTimestamp) as failed:
            await committed(world)
        assert failed.value.hint == (
            "Run the query again from its checkpoint and the rest follows; nothing is doubled. Look at the clock."
        )
        world.brokers.faults = []
        await world.commit([await world.stage(SECOND + FIRST)])
        assert sorted(filter(None, world.brokers.values())) == expected(*FIRST, *SECOND)

    run(test(World()))


def test_rows_that_differ_from_what_was_staged_are_not_sent() -> None:
    async def test(world: World) -> None:
        file = await world.stage(FIRST)
        body = bytearray(world.store._objects[file.key])
        body[70] ^= 1
        world.store._objects[file.key] = bytes(body)
        with pytest.raises(Exception, match=file.key):
            await world.commit([file])
        assert world.brokers.values() == []

    run(test(World()))


def test_several_topics_are_one_batch() -> None:
    async def test(world: World) -> None:
        done = await world.commit([await world.stage(FIRST), await world.stage(SECOND, topic="payments")])
        assert done is not None
        assert {count.topic for count in done.partitions} == {"orders", "payments"}
        assert sorted(filter(None, world.brokers.values("payments"))) == expected(*SECOND)

    run(test(World()))


def test_a_batch_write_leaves_nothing_on_the_bucket() -> None:
    async def test(world: World) -> None:
        await world.commit([await world.stage(FIRST)], forgets=True)
        assert world.keys() == []

    run(test(World()))


def test_an_abort_takes_back_what_was_not_chosen() -> None:
    async def test(world: World) -> None:
        given_up, file = await world.stage(FIRST), await world.stage(SECOND)
        abort = partial(discard, world.store, WRITE, 0, now_ms=world.clock)
        await abort([given_up])
        assert world.keys() == [file.key]
        world.steps.crash_at = len(world.steps.taken) + 4
        with killed():
            await world.commit([file])
        world.revive()
        await abort([file])
        assert world.store._objects.keys() >= {file.key}, (
            "Spark aborts after a commit that failed; who comes again needs what was chosen"
        )
        await world.commit([])
        assert sorted(filter(None, world.brokers.values())) == expected(*SECOND)

    run(test(World()))
