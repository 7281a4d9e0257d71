"""A broker's life among others: it claims, joins, takes over, hands over, loses its session and begins another, under faults."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable

import pytest

from gateway.cluster import bucket_isolation
from gateway.cluster.view import partitions_of
from gateway.cluster.write_notes import NOTE_INTERVAL_S
from gateway.controller.write_proofs import PROOF_INTERVAL_S
from metadata.cluster.broker_registry import write_draining
from metadata.errors import NoLeader, OutcomeUnknown, Rejected, SessionFenced
from metadata.model import TopicPartition
from metadata.store.interface import Delete
from segments.log.session_log import FetchTarget
from segments.partition.partition_log import Bounds
from segments.settings import SegmentSettings
from tests.kit.gateway.virtual_cluster import LAYOUT, REQUEST_TIMEOUT_S, SETTINGS, Fault, Process, World, in_a_world
from tests.kit.segments.batches import batch_of, header_of, sequenced_batch
from tests.simulation.virtual_loop import virtual_loop

# From a cut to the next leader: noticed, proven, sealed and appointed.
GIVEN_UP_S = SETTINGS.bucket_timeout_ms / 1000 + bucket_isolation.PROOFS * bucket_isolation.CHECK_INTERVAL_S + 3.0

RECORD = sequenced_batch(7, 0)


async def two_that_share(world: World, partitions: int = 4) -> tuple[Process, Process, list[TopicPartition]]:
    """Two brokers, and a topic of which each leads a half."""
    b1, b2 = await world.start("b1", "b2")
    led = await world.topic("orders", partitions)
    return b1, b2, led


def led_by(world: World, process: Process, partitions: list[TopicPartition]) -> list[TopicPartition]:
    return [partition for partition in partitions if world.leader(partition) is process]


def once_refused(request: str) -> Callable[[str], Fault | None]:
    faults = iter([Fault.REFUSED])
    return lambda what: next(faults, None) if what == request else None


async def drain(world: World, broker_id: str) -> None:
    await write_draining(world.metadata, LAYOUT, broker_id, draining=True)


# ── topics that are deleted ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_deleted_topic_is_let_go_of_only_by_leaders_that_this_broker_has_not_heard_of_either() -> None:
    async def scenario(world: World) -> None:
        b1, b2 = await world.start("b1", "b2")
        b2.metadata.reported_after_s = 5.0
        topic = await world.topics.create("orders", 4)
        partitions = partitions_of(topic)
        await world.until(lambda: bool(led_by(world, b1, partitions)))
        led = led_by(world, b1, partitions)[0]
        assert b2.view.partitions.get(led) is None, "it has not heard that the partition has a leader"
        b1.metadata.reported_after_s = 1.0
        b2.to_metadata.before = once_refused("metadata range")
        deleted = await world.topics.delete("orders")
        assert await b2.leadership.let_go(deleted, timeout_s=60)
        assert not b1.leads(led), "else it acknowledges records of a topic whose deletion was answered"

    in_a_world(scenario)


def test_a_deleted_topic_whose_leaders_can_not_be_read_is_not_called_let_go_of() -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        await world.topic("orders")
        deleted = await world.topics.delete("orders")
        b1.to_metadata.before = lambda what: Fault.REFUSED if what == "metadata range" else None
        assert not await b1.leadership.let_go(deleted, timeout_s=5)

    in_a_world(scenario)


# ── handover ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_segment_of_a_partition_that_is_handed_over_does_not_linger() -> None:
    async def scenario(world: World) -> None:
        _, b2, partitions = await two_that_share(world)
        producing = asyncio.ensure_future(world.keep_producing(partitions, each_s=0.01))
        await asyncio.sleep(8)
        await drain(world, "b1")
        await world.until(lambda: led_by(world, b2, partitions) == partitions, within_s=0.5)
        producing.cancel()
        await world.check()

    in_a_world(scenario, segments=SegmentSettings(linger_ms=3000, puts_per_second_max=0))


def test_a_drain_under_load_costs_producers_some_round_trips() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        producing = asyncio.ensure_future(world.keep_producing(partitions, each_s=0.005))
        await asyncio.sleep(3)
        began_s = virtual_loop().time()
        await drain(world, "b1")
        await world.until(lambda: not led_by(world, b1, partitions) and len(led_by(world, b2, partitions)) == 4, within_s=1)
        await asyncio.sleep(1)
        assert world.longest_wait_s(sent_since_s=began_s - 1) < 0.25, "of 30 ms to the bucket, and 4 to the metadata"
        producing.cancel()
        await world.check()

    in_a_world(scenario, segments=SegmentSettings())


def test_of_what_was_read_ahead_nothing_is_read_again_when_the_leader_lets_go() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        await world.keep_producing(partitions, for_s=5)
        mine = led_by(world, b1, partitions)
        b1.to_metadata.before = lambda what: Fault.REFUSED if what == "transact" else None
        await world.ask_to_move(mine, b2.session)
        await asyncio.sleep(1)
        assert any(what == "list" for _, what, _ in b2.to_bucket.calls), "it has read ahead"
        b2.to_bucket.calls.clear()
        b1.to_metadata.before = lambda what: None
        await world.until(lambda: led_by(world, b2, mine) == mine)
        reads = [(what, key) for _, what, key in b2.to_bucket.calls if what in {"list", "get", "tail"}]
        assert [(what, key.split("/")[-2]) for what, key in reads] == [("list", "_log")], "but which manifest is the newest"
        await world.check()

    in_a_world(scenario)


@pytest.mark.parametrize("reading_takes_longer", [False, True])
def test_segments_written_since_the_prefetch_are_read_by_name_without_a_listing(reading_takes_longer: bool) -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        await world.keep_producing(partitions, for_s=5)
        mine = led_by(world, b1, partitions)
        if reading_takes_longer:
            b2.to_bucket.latency_s = 0.5
        else:
            b1.metadata.reported_after_s = 1.0  # so it goes on writing, while b2 has heard already that they come
        b2.to_bucket.calls.clear()
        producing = asyncio.ensure_future(world.keep_producing(partitions))
        await drain(world, "b1")
        await world.until(lambda: led_by(world, b2, mine) == mine)
        of_sessions = [(what, key) for _, what, key in b2.to_bucket.calls if key.startswith("wal/")]
        reads = [(what, key) for what, key in of_sessions if what in {"list", "get", "tail"}]
        assert [what for what, _ in reads].count("list") == 1
        assert len(reads) == len(set(reads)), "no footer twice"
        producing.cancel()
        await world.check()

    in_a_world(scenario)


def test_a_second_move_before_the_watch_reports_the_first_release_is_not_delayed() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world, 8)
        one, *others = led_by(world, b1, partitions)
        theirs = led_by(world, b2, partitions)
        b1.metadata.reported_after_s = 0.2
        await world.ask_to_move([one], b2.session)
        await asyncio.sleep(0.15)
        began_s = await world.ask_to_move(others, b2.session)
        await world.until(lambda: all(world.leader(p) is b2 for p in (one, *others)) or bool(led_by(world, b1, theirs)))
        assert virtual_loop().time() - began_s < 0.45, "no pause for a transaction that was refused"

    in_a_world(scenario)


def test_a_partition_without_appends_in_flight_moves_though_the_bucket_takes_nothing() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        busy, idle = led_by(world, b1, partitions)
        b1.to_bucket.down = Fault.REQUEST_LOST
        producing = asyncio.ensure_future(world.produce(busy))
        await asyncio.sleep(0.2)
        await world.ask_to_move([busy, idle], b2.session)
        await world.until(lambda: world.leader(idle) is b2, within_s=0.5)
        assert (await world.state(busy)).leader_session == b1.session
        b1.to_bucket.down = None
        await producing
        await world.until(lambda: world.leader(busy) is b2 or b1.session is None)
        await world.check()

    in_a_world(scenario)


def test_nothing_is_taken_between_the_flush_and_the_release() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        partition = led_by(world, b1, partitions)[0]
        b1.to_metadata.latency_s = 2.0
        await world.ask_to_move([partition], b2.session)
        await asyncio.sleep(1.5)
        assert b1.leads(partition)
        assert (await world.state(partition)).leader_session == b1.session, "it is on its way to the metadata"
        with pytest.raises(NoLeader, match="handed over"):
            await b1.leadership.log.produce(partition, RECORD, header_of(RECORD))

    in_a_world(scenario)


@pytest.mark.parametrize("answer_is_lost", [False, True])
def test_a_leader_that_sent_its_release_refuses_readers_before_its_watch_reports_it(answer_is_lost: bool) -> None:
    """The next leader commits what this one does not know: its high watermark would be too low."""

    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        partition = led_by(world, b1, partitions)[0]
        await world.produce(partition)
        log = b1.leadership.log
        b1.metadata.reported_after_s = 2.0
        await world.ask_to_move([partition], b2.session)
        await asyncio.sleep(1)
        assert [bounds for bounds in await log.reads.bounds_of([partition]) if isinstance(bounds, Bounds)], "it was not asked yet"
        b1.to_metadata.before = lambda what: Fault.ANSWER_LOST if what == "transact" and answer_is_lost else None
        await world.until(lambda: b2.leads(partition))
        [committed] = await b2.leadership.log.reads.bounds_of([partition])
        b1.to_metadata.before = lambda what: None
        assert isinstance(committed, Bounds)
        assert b1.leads(partition), "its watch has not reported the release yet"
        [reported] = await log.reads.bounds_of([partition])
        [fetched] = await log.reads.fetch([FetchTarget(partition, committed.log_start_offset, 1 << 20)], bytes_max=1 << 20)
        assert isinstance(reported, NoLeader)
        assert isinstance(fetched, NoLeader)
        await world.check()

    in_a_world(scenario)


def test_subscribers_are_notified_when_this_broker_becomes_the_leader() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        mine = led_by(world, b1, partitions)
        seen: list[bool] = []
        b2.leadership.subscribe(lambda: seen.append(any(map(b2.leads, mine))))
        await world.ask_to_move(mine[:1], b2.session)
        await world.until(lambda: True in seen, within_s=1)

    in_a_world(scenario)


def test_a_request_that_is_taken_back_leaves_the_partition_where_it_was_and_open() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        partition = led_by(world, b1, partitions)[0]
        b1.to_metadata.before = lambda what: Fault.REFUSED if what == "transact" else None
        await world.ask_to_move([partition], b2.session)
        await asyncio.sleep(0.3)
        await world.ask_to_move([partition], None)
        b1.to_metadata.before = lambda what: None
        await asyncio.sleep(0.3)
        assert world.leader(partition) is b1
        await asyncio.wait_for(world.produce(partition), 1)
        assert (await world.state(partition)).leader_epoch == 0

    in_a_world(scenario)


def test_a_busy_partition_that_is_taken_back_while_it_is_flushed_holds_up_no_other() -> None:
    """It always has records in flight, so no step may wait until it has none."""

    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        busy, other = led_by(world, b1, partitions)
        b1.to_bucket.latency_s = 0.4
        record = batch_of(b"one of many")

        async def produce() -> None:
            with contextlib.suppress(NoLeader):  # while it is to be handed over
                await b1.leadership.log.produce(busy, record, header_of(record))

        async with asyncio.TaskGroup() as producers:
            for turn in range(100):
                producers.create_task(produce())
                await asyncio.sleep(0.05)
                if turn == 10:
                    await world.ask_to_move([busy], b2.session)
                elif turn == 12:
                    assert (await world.state(busy)).leader_session == b1.session, "it is being flushed"
                    await world.ask_to_move([busy], None)
                elif turn == 20:
                    await world.ask_to_move([other], b2.session)
            assert world.leader(busy) is b1
            assert world.leader(other) is b2

    in_a_world(scenario)


def test_a_partition_that_is_given_on_before_it_was_taken_over_passes_through_unwritten() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        [b3] = await world.start("b3")
        await world.keep_producing(partitions, for_s=1)
        partition = next(p for p in partitions if world.leader(p) is b1)
        b2.to_bucket.before = lambda what: Fault.REFUSED if what in {"list", "get", "tail"} else None
        await world.ask_to_move([partition], b2.session)
        await asyncio.sleep(0.3)
        assert (await world.state(partition)).leader_session == b2.session
        assert not b2.leads(partition)
        await world.ask_to_move([partition], b3.session)
        await world.until(lambda: world.leader(partition) is b3)
        b2.to_bucket.before = lambda what: None
        await world.produce(partition)
        await world.check()

    in_a_world(scenario)


def test_a_prefetch_for_an_epoch_that_is_over_is_not_served_in_the_next_one() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world, 2)
        [b3] = await world.start("b3")
        partition = led_by(world, b1, partitions)[0]
        await world.produce(partition)
        lists = itertools.count()

        def slow(what: str) -> Fault | None:
            """Reading ahead fails, and the reading that follows takes its time."""
            is_first = what == "list" and next(lists) == 0
            b2.to_bucket.latency_s = 4.0 if what == "list" and not is_first else 0.03
            return Fault.REFUSED if is_first else None

        b2.to_bucket.before = slow
        await world.ask_to_move([partition], b2.session)
        await asyncio.sleep(0.3)
        assert not b2.leads(partition), "it reads, and goes on reading"
        await world.ask_to_move([partition], b3.session)
        await world.until(lambda: world.leader(partition) is b3, within_s=1)
        await world.produce(partition)
        await world.ask_to_move([partition], b2.session)
        await world.until(lambda: world.leader(partition) is b2)
        assert (await world.state(partition)).leader_epoch == b2.leadership.log.partitions.bounds(partition).leader_epoch == 3
        await world.check()

    in_a_world(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["the leader, before it has released", "the leader, after it", "the next leader"])
def test_a_handover_that_crosses_a_kill_loses_nothing(dies: str) -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        await world.start("b3")
        producing = asyncio.ensure_future(world.keep_producing(partitions, each_s=0.01))
        await asyncio.sleep(2)
        mine = led_by(world, b1, partitions)

        def strike(what: str) -> Fault | None:
            if what == "transact":
                b1.to_metadata.before = lambda what: None
                if dies == "the next leader":
                    b2.kill()
                else:
                    virtual_loop().call_later(0.003 if "after" in dies else 0.0, b1.kill)
            return None

        b1.to_metadata.before = strike
        await world.ask_to_move(mine, b2.session)
        await asyncio.sleep(15)
        assert all(world.leader(partition) is not None for partition in partitions)
        began_s = virtual_loop().time()
        await asyncio.sleep(1)
        assert any(sent_s > began_s for sent_s, _ in world.waits_s)
        producing.cancel()
        await world.check()

    in_a_world(scenario)


def test_the_last_broker_is_not_drained_and_ends_in_order_all_the_same() -> None:
    async def scenario(world: World) -> None:
        [b1] = await world.start("b1")
        partitions = await world.topic("orders", 2)
        await world.keep_producing(partitions, for_s=1)
        session = b1.session
        assert session is not None
        b1.stop()
        await b1.ends(within_s=2)
        assert await world.registered() == {}
        await world.start("b2")
        await world.until(lambda: all(world.leader(partition) is not None for partition in partitions), within_s=2)
        await world.check()

    in_a_world(scenario)


# ── a topic that is deleted ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("trouble", ["hears late", "is cut off from the metadata", "dies"])
def test_a_deletion_is_done_when_no_leader_takes_records_any_more_whatever_one_of_them_has_heard(trouble: str) -> None:
    async def scenario(world: World) -> None:
        b1, b2 = await world.start("b1", "b2")
        topic = await world.topics.create("orders", 4)
        await world.until_led(topic)
        partitions = partitions_of(topic)
        late = led_by(world, b2, partitions)[0]
        if trouble == "hears late":
            b2.metadata.reported_after_s = 2.0
        elif trouble == "dies":
            b2.kill()
        else:
            b2.to_metadata.down = Fault.HANGS
        await world.topics.delete("orders")
        deleting = asyncio.ensure_future(b1.leadership.let_go(topic, timeout_s=30))
        if trouble != "dies":
            await b2.leadership.log.produce(late, RECORD, header_of(RECORD))
            assert not deleting.done()
        assert await deleting
        if trouble != "dies":
            next_record = sequenced_batch(7, 1)
            with pytest.raises((NoLeader, SessionFenced)):
                await b2.leadership.log.produce(late, next_record, header_of(next_record))
        b2.to_metadata.down = None
        await world.until(lambda: not b1.view.partitions.states, within_s=5)
        assert b1.session is not None

    in_a_world(scenario)


# ── a session that is lost ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_broker_whose_registration_is_removed_begins_a_new_session_at_once() -> None:
    async def scenario(world: World) -> None:
        b1, _, partitions = await two_that_share(world)
        await world.keep_producing(partitions, for_s=1)
        lost = b1.session
        await world.metadata.transact([], [Delete(LAYOUT.broker("b1"))])
        await world.until(lambda: b1.session not in (None, lost), within_s=1)
        await asyncio.gather(*map(world.produce, partitions))
        await world.check()

    in_a_world(scenario)


@pytest.mark.parametrize("etcd_is_away", [False, True])
def test_of_two_processes_with_one_id_the_older_one_stops_even_if_it_could_not_ask_why(etcd_is_away: bool) -> None:
    async def scenario(world: World) -> None:
        older, _, partitions = await two_that_share(world)
        await world.keep_producing(partitions, for_s=1)
        if etcd_is_away:
            older.to_metadata.before = lambda what: Fault.REFUSED if what == "metadata get" else None
            virtual_loop().call_later(6.0, setattr, older.to_metadata, "before", lambda what: None)
        newer = world.begin("b1")
        with pytest.raises(Rejected, match="another process has registered"):
            await older.ends(within_s=20)
        assert (await world.registered())["b1"].session == newer.session
        await asyncio.gather(*map(world.produce, partitions))
        await world.check()

    in_a_world(scenario)


@pytest.mark.parametrize("stage", ["claim", "join", "take over", "session lost"])
def test_a_broker_is_stopped_at_each_stage_though_what_it_waits_for_is_away(stage: str) -> None:
    async def scenario(world: World) -> None:
        b1, _, partitions = await two_that_share(world)
        await world.keep_producing(partitions, for_s=1)
        newcomer = world.begin("b3")
        if stage == "claim":
            newcomer.to_bucket.down = Fault.REFUSED
        elif stage == "join":
            newcomer.to_metadata.before = lambda what: Fault.REFUSED if what == "grant lease" else None
        elif stage == "take over":
            await world.until(lambda: newcomer.session is not None)
            newcomer.to_bucket.before = lambda what: Fault.REFUSED if what in {"list", "get", "tail"} else None
            b1.kill()
        else:
            await world.until(lambda: newcomer.session is not None)
            newcomer.to_bucket.down = newcomer.to_metadata.down = Fault.REFUSED
        await asyncio.sleep(5)
        newcomer.stop()
        await newcomer.ends(within_s=SETTINGS.drain_timeout_ms / 1000 + 2 * world.segments.put_timeout_ms / 1000 + 3)
        await world.until(lambda: all(world.leader(partition) is not None for partition in partitions))
        await world.check()

    in_a_world(scenario)


# ── a bucket that one broker alone can't reach ──────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST, Fault.HANGS])
@pytest.mark.parametrize("controls", [False, True])
def test_a_broker_that_is_cut_off_from_the_bucket_alone_gives_up_what_it_leads(fault: Fault, controls: bool) -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        held = await world.metadata.get(LAYOUT.controller)
        assert held is not None
        controller, other = (b1, b2) if held.value.startswith(b"b1 ") else (b2, b1)
        cut, well = (controller, other) if controls else (other, controller)
        producing = asyncio.ensure_future(world.keep_producing(partitions))
        await asyncio.sleep(2)
        began_s = virtual_loop().time()
        cut.to_bucket.down = fault
        await world.until(lambda: len(led_by(world, well, partitions)) == 4, within_s=GIVEN_UP_S)
        await asyncio.sleep(3)
        assert world.longest_wait_s(sent_since_s=began_s - 1) < GIVEN_UP_S + 1
        assert well.session is not None
        cut.to_bucket.down = None
        await world.until(lambda: len(led_by(world, cut, partitions)) == 2, within_s=30)
        producing.cancel()
        await world.check()

    in_a_world(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("stopped_after_s", [0.5, 3.0])
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.HANGS])
def test_a_broker_that_is_stopped_while_cut_off_from_the_bucket_is_replaced_in_time(fault: Fault, stopped_after_s: float) -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        producing = asyncio.ensure_future(world.keep_producing(partitions))
        await asyncio.sleep(2)
        began_s = virtual_loop().time()
        b1.to_bucket.down = fault
        await asyncio.sleep(stopped_after_s)
        b1.stop()
        await world.until(lambda: len(led_by(world, b2, partitions)) == 4, within_s=GIVEN_UP_S)
        await b1.ends(within_s=REQUEST_TIMEOUT_S)
        await asyncio.sleep(3)
        assert world.longest_wait_s(sent_since_s=began_s - 1) < GIVEN_UP_S + 1
        producing.cancel()
        await world.check()

    in_a_world(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("back_after_s", [12.0, 13.0, 14.0, 15.0, 16.0, 17.0])
def test_no_broker_loses_its_session_during_or_after_an_outage_of_the_bucket(back_after_s: float) -> None:
    """At whatever moment between two retries of the brokers the bucket returns."""

    async def scenario(world: World) -> None:
        brokers = await world.start("b1", "b2", "b3")
        partitions = await world.topic("orders", 3)
        await world.keep_producing(partitions, for_s=1)
        sessions = [broker.session for broker in brokers]
        busy = partitions[0]  # so only its leader has noticed
        for broker in brokers:
            broker.to_bucket.down = Fault.HANGS
        producing = asyncio.ensure_future(world.produce(busy))
        await asyncio.sleep(back_after_s)
        assert any(found.unwritable_bytes for found in (await world.registered()).values())
        for broker in brokers:
            broker.to_bucket.down = None
        await producing
        await asyncio.sleep(12)
        assert [broker.session for broker in brokers] == sessions
        assert not any(found.unwritable_bytes for found in (await world.registered()).values())
        await world.check()

    in_a_world(scenario, segments=SegmentSettings())


def test_a_disk_that_is_full_for_all_takes_small_objects_and_ends_no_session() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        sessions = b1.session, b2.session
        for broker in (b1, b2):
            broker.bucket.bytes_max = 150
        producing = asyncio.ensure_future(world.produce(led_by(world, b1, partitions)[0]))
        await asyncio.sleep(20)
        assert (await world.registered())["b1"].unwritable_bytes > 150
        assert (b1.session, b2.session) == sessions
        for broker in (b1, b2):
            broker.bucket.bytes_max = None
        await producing
        await asyncio.sleep(3)
        assert (b1.session, b2.session) == sessions

    in_a_world(scenario, segments=SegmentSettings())


def test_a_broker_that_writes_nothing_and_can_not_read_what_it_is_appointed_to_gives_it_up() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        await world.keep_producing(partitions, for_s=1)
        [b3] = await world.start("b3")
        await world.until(lambda: bool(led_by(world, b3, partitions)))
        b3.to_bucket.down = Fault.HANGS
        b1.kill()
        b1_gone_s = SETTINGS.session_timeout_ms / 1000 + 2
        await world.until(lambda: len(led_by(world, b2, partitions)) == 4, within_s=b1_gone_s + 2 * GIVEN_UP_S)
        await world.check()

    in_a_world(scenario)


def test_a_cluster_at_rest_tries_to_write_nothing_and_looks_for_its_seals_once_a_minute() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        await world.keep_producing(partitions, for_s=1)
        await asyncio.sleep(NOTE_INTERVAL_S + PROOF_INTERVAL_S + 5)  # a batch of appointments has followed the last records
        for broker in (b1, b2):
            broker.to_bucket.calls.clear()
            broker.to_metadata.calls.clear()
        await asyncio.sleep(60)
        for broker in (b1, b2):
            assert [what for _, what, _ in broker.to_bucket.calls] == ["list"]
            assert {what for _, what, _ in broker.to_metadata.calls} <= {"keep alive", "metadata get"}

    in_a_world(scenario)


def test_a_producer_of_a_broker_that_gave_up_gets_outcome_unknown() -> None:
    async def scenario(world: World) -> None:
        b1, b2, partitions = await two_that_share(world)
        partition = led_by(world, b1, partitions)[0]
        b1.to_bucket.before = lambda what: Fault.ANSWER_LOST if what == "create" else None
        virtual_loop().call_later(0.01, setattr, b1.to_bucket, "before", lambda what: Fault.HANGS)
        producing = asyncio.ensure_future(reported_by(b1, partition))
        await world.until(producing.done, within_s=GIVEN_UP_S)
        assert isinstance(await producing, OutcomeUnknown)
        await world.until(lambda: world.leader(partition) is b2, within_s=3)
        assert b2.leadership.log.partitions.bounds(partition).end_offset == 1, "it was written after all"

    in_a_world(scenario)


async def reported_by(process: Process, partition: TopicPartition) -> Exception | None:
    try:
        await process.leadership.log.produce(partition, RECORD, header_of(RECORD))
    except OutcomeUnknown as error:
        return error
    return None


# ── a life with a fault at each of its requests ─────────────────────────────────────────────────────────────────────────


async def a_life(world: World, strike: Callable[[Process, str], Fault | None]) -> Process:
    """Claim, join, take over, hand over, drain and end, with producers all the while. `strike` is asked at each request."""
    [steady] = await world.start("b1")
    partitions = await world.topic("orders", 2)
    producing = asyncio.ensure_future(world.keep_producing(partitions, each_s=0.1))
    await asyncio.sleep(0.5)
    victim = world.begin("b2")
    victim.to_bucket.before = victim.to_metadata.before = lambda what: strike(victim, what)
    await asyncio.sleep(1.5)
    await world.ask_to_move(partitions[:1], steady.session)
    await asyncio.sleep(0.5)
    victim.stop()
    await asyncio.sleep(1.0)
    victim.to_bucket.before = victim.to_metadata.before = lambda what: None

    def is_settled() -> bool:
        ended = victim.main.done() or not world.is_alive(victim)
        return ended and all(world.leader(partition) is steady for partition in partitions)

    await world.until(is_settled, within_s=25, each_s=0.05)
    began_s = virtual_loop().time()
    await asyncio.sleep(2)
    for partition in partitions:
        assert world.leader(partition) is steady, f"{partition} is not where it belongs"
    assert world.longest_wait_s(sent_since_s=began_s) < 0.5
    producing.cancel()
    await world.check()
    return victim


def requests_of_a_life() -> int:
    count = itertools.count()

    async def scenario(world: World) -> None:
        await a_life(world, lambda victim, what: (next(count), None)[1])

    in_a_world(scenario)
    return next(count)


FAULTS: dict[str, Callable[[Process], Fault | None]] = {
    "refused": lambda victim: Fault.REFUSED,
    "request lost": lambda victim: Fault.REQUEST_LOST,
    "answer lost": lambda victim: Fault.ANSWER_LOST,
    "hangs": lambda victim: Fault.HANGS,
    "killed": lambda victim: victim.kill(),
    "cancelled": lambda victim: (virtual_loop().call_soon(victim.main.cancel), None)[1],
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_request_of_a_broker_loses_no_record_and_does_not_prevent_its_end(fault: str) -> None:
    total = requests_of_a_life()
    assert total > 40
    for index in range(total):
        count = itertools.count()

        def strike(victim: Process, what: str, count: itertools.count[int] = count, index: int = index) -> Fault | None:
            return FAULTS[fault](victim) if next(count) == index else None

        async def scenario(world: World, strike: Callable[[Process, str], Fault | None] = strike) -> None:
            victim = await a_life(world, strike)
            if fault != "killed":
                assert victim.main.done(), "it was stopped"
            if fault not in {"killed", "cancelled"}:
                await victim.ends(within_s=1)

        run_named(scenario, f"{fault} at request {index}")


def run_named(scenario: Callable[[World], Awaitable[None]], name: str) -> None:
    try:
        in_a_world(scenario)
    except BaseException as error:
        error.add_note(name)
        raise
