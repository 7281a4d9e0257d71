"""The controller seals the dead, appoints leaders, and asks those who live: one at a time, and never on what it only believes."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from gateway.controller import controller as controller_module
from metadata.cluster.broker_registry import BrokerRegistration, encode_registration
from metadata.cluster.leadership import FORMAT_VERSION, PartitionState, appointed, moving, read_all
from metadata.controller.plan import Steps
from metadata.errors import Denied, Unavailable
from metadata.model import Partition, Revision, SegmentSeq, SessionId, TopicPartition
from metadata.store.interface import (
    Compare,
    Delete,
    DeletePrefix,
    Event,
    KeyValue,
    Operation,
    Put,
    RevisionCompacted,
    TransactionResult,
)
from metadata.topics import registry as topics_registry
from metadata.topics.topic import Topic
from segments.bucket.layout import segment_key
from tests.kit.gateway.contenders import LAYOUT, RELEASE_TIMEOUT_S, Contender, Stage, on_stage, soon
from tests.kit.metadata.faulty_store import unavailable
from tests.kit.segments.scripted_store import fails


def partition(topic: Topic, number: int) -> TopicPartition:
    return TopicPartition(topic.id, Partition(number))


async def led_by_two(stage: Stage, partitions: int = 4) -> tuple[Topic, Contender]:
    """A topic that sessions 1 and 2 share; 1 is the controller."""
    await stage.register(1, 2)
    topic = await stage.topic("orders", partitions)
    contender = await stage.stand(1)
    await soon()
    assert Counter(await stage.leaders(topic)) == {1: partitions // 2, 2: partitions // 2}
    return topic, contender


# ── who is the controller ───────────────────────────────────────────────────────────────────────────────────────────────


def test_of_several_that_stand_one_is_elected_and_the_next_when_its_lease_ends() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2, 3)
        for session in (1, 2, 3):
            await stage.stand(session)
        await soon()
        first = await stage.controller()
        assert first in {"b1 1", "b2 2", "b3 3"}
        await stage.end(int(first[1]))
        await soon()
        second = await stage.controller()
        assert second is not None
        assert second != first

    on_stage(scenario)


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_an_election_whose_answer_is_lost_is_found_out(lost: str) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        topic = await stage.topic("orders", 1)
        contender = await stage.stand(1)
        contender.store.lose_answers, contender.store.lose_requests = int(lost == "answer"), int(lost == "request")
        await soon()
        assert await stage.controller() == "b1 1"
        assert await stage.leaders(topic) == [1]

    on_stage(scenario)


@pytest.mark.parametrize("late", ["answer", "watch"])
def test_an_election_is_logged_once(late: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("INFO")

    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        contender = await stage.stand(1)
        if late == "watch":
            monkeypatch.setattr(contender.controller, "_holder_changed", lambda events: None)
        else:
            contender.store.lose_answers = 1
        for name in ("orders", "events"):  # each poll finds again that it is the controller
            topic = await stage.topic(name, 1)
            await soon()
            assert await stage.leaders(topic) == [1]

    on_stage(scenario)
    assert [record.getMessage() for record in caplog.records if record.levelname == "INFO"].count(
        "controller elected broker=b1"
    ) == 1


def test_a_session_of_the_same_broker_does_not_take_the_election_of_its_last_one_for_its_own() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        await stage.write(Put(LAYOUT.controller, b"b1 0"))
        topic = await stage.topic("orders", 1)
        await stage.stand(1)
        await soon()
        assert await stage.leaders(topic) == [None]
        await stage.write(Delete(LAYOUT.controller))
        await soon()
        assert await stage.leaders(topic) == [1]

    on_stage(scenario)


def test_a_key_that_only_begins_like_the_controllers_is_not_taken_for_it() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        topic = await stage.topic("orders", 1)
        await stage.write(Put(LAYOUT.controller + "s", b"b9 9"))
        await stage.stand(1)
        await soon()
        assert await stage.leaders(topic) == [1]
        await stage.write(Put(LAYOUT.controller + "s", b"b9 9"))
        await stage.topics.alter("orders", partition_count=2)
        await soon()
        assert len(await read_all(stage.sqlite, LAYOUT)) == 2

    on_stage(scenario)


def test_a_controller_does_not_write_its_decisions_when_another_was_elected_meanwhile() -> None:
    async def scenario(stage: Stage) -> None:
        topic, stalled = await led_by_two(stage)
        before = await stage.states(topic)
        stalled.store.before_transaction = lambda: stage.write(Put(LAYOUT.controller, b"b9 9"))
        await stage.register(2, draining=True)
        await soon()
        assert await stage.controller() == "b9 9"
        assert await stage.states(topic) == before

    on_stage(scenario)


def test_a_controller_that_wakes_up_and_seals_whom_it_found_dead_before_does_no_harm() -> None:
    """A dead session stays dead; only the appointment is the other controller's."""

    async def scenario(stage: Stage) -> None:
        topic, stalled = await led_by_two(stage)
        stage.bucket.outage = Unavailable("503")
        await stage.end(2)
        await soon()
        await stage.write(Put(LAYOUT.controller, b"b9 9"))
        before = await stage.states(topic)
        stage.bucket.outage = None
        await soon()
        assert stage.sealed(2)
        assert await stage.states(topic) == before
        assert not stalled.running.done()

    on_stage(scenario)


def test_everything_that_a_controller_writes_is_under_its_guard() -> None:
    async def scenario(stage: Stage) -> None:
        topic, contender = await led_by_two(stage)
        await stage.register(3)
        await soon()
        await stage.hand_over_all()
        await stage.end(2)
        await soon()
        await asyncio.sleep(RELEASE_TIMEOUT_S + 5)
        await stage.topics.delete("orders")
        await soon()
        await stage.hand_over_all()
        await soon()
        assert await stage.leaders(topic) == [None] * 4
        written = [operations for _, operations in contender.store.transactions if operations]
        elected = [operations for operations in written if operations[0].key == LAYOUT.controller]  # type: ignore[union-attr]
        assert len(elected) == 1
        held = await stage.sqlite.get(LAYOUT.controller)
        assert held is not None
        for compares, operations in contender.store.transactions:
            if operations not in elected:
                assert Compare(LAYOUT.controller, held.mod_revision) in compares

    on_stage(scenario)


# ── the dead ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_session_of_a_broker_that_is_gone_is_sealed_before_anything_of_its_is_given_away() -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        stage.bucket.outage = Unavailable("503")
        await stage.end(2)
        await asyncio.sleep(60)
        assert Counter(await stage.leaders(topic)) == {1: 2, 2: 2}
        stage.bucket.outage = None
        await soon()
        assert stage.sealed(2)
        states = await stage.states(topic)
        assert Counter(state[:2] for state in states if state) == {(1, 0): 2, (1, 1): 2}

    on_stage(scenario)


def test_a_broker_that_only_the_cache_does_not_know_is_not_sealed() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        topic = await stage.topic("orders", 1)
        contender = await stage.stand(1)
        await soon()
        contender.brokers._records.watched._apply = lambda events: None
        await stage.register(2)
        await stage.put_state(topic, 0, appointed(appointed(None, SessionId(1)), SessionId(2)))
        await soon()
        assert not stage.sealed(2)
        assert await stage.states(topic) == [(2, 1, None)]

    on_stage(scenario)


def test_several_dead_are_sealed_at_the_same_time_and_one_that_can_not_be_holds_up_no_other() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2, 3)
        topic = await stage.topic("orders", 3)
        await stage.stand(1)
        await soon()
        stage.bucket.script("create", segment_key(SessionId(2), SegmentSeq(0)), *[fails(Denied("AccessDenied"))] * 1000)
        await stage.end(2)
        await stage.end(3)
        await soon()
        assert (stage.sealed(2), stage.sealed(3)) == (False, True)
        assert Counter(await stage.leaders(topic)) == {1: 2, 2: 1}
        await asyncio.sleep(600)
        tries = stage.bucket.count("create", segment_key(SessionId(2), SegmentSeq(0)))
        assert tries <= 130, "a bucket that says no is not asked five times a second without end"
        stage.bucket.heal()
        await asyncio.sleep(10)
        assert Counter(await stage.leaders(topic)) == {1: 3}

    on_stage(scenario)


def test_a_registration_that_can_not_be_read_does_not_stop_the_dead_from_being_replaced() -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        await stage.write(Put(LAYOUT.broker("by-hand"), b"{"))
        await stage.end(2)
        await soon()
        assert Counter(await stage.leaders(topic)) == {1: 4}

    on_stage(scenario)


def test_a_controller_finds_out_about_those_who_died_before_it_was_elected() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        topic = await stage.topic("orders", 2)
        await stage.put_state(topic, 0, appointed(None, SessionId(7)))
        await stage.put_state(topic, 1, moving(appointed(None, SessionId(8)), SessionId(1)))
        await stage.stand(1)
        await soon()
        assert (stage.sealed(7), stage.sealed(8)) == (True, True)
        assert await stage.states(topic) == [(1, 1, None), (1, 1, None)]

    on_stage(scenario)


def test_without_any_broker_to_take_them_partitions_wait() -> None:
    async def scenario(stage: Stage) -> None:
        topic, contender = await led_by_two(stage)
        await stage.write(Delete(LAYOUT.broker("b1")), Delete(LAYOUT.broker("b2")))
        await asyncio.sleep(60)
        assert (stage.sealed(1), stage.sealed(2)) == (True, True)
        writes = len(contender.store.transactions)
        await asyncio.sleep(600)
        assert len(contender.store.transactions) == writes
        await stage.register(3)
        await soon()
        assert Counter(await stage.leaders(topic)) == {3: 4}

    on_stage(scenario)


# ── those who live ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_partitions_that_are_added_get_leaders_and_nothing_else_moves() -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        before = await stage.states(topic)
        grown = await stage.topics.alter("orders", partition_count=6)
        await soon()
        after = await stage.states(grown)
        assert after[:4] == before
        assert Counter(await stage.leaders(grown)) == {1: 3, 2: 3}

    on_stage(scenario)


def test_a_broker_that_comes_is_given_its_share_by_those_who_have_it() -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage, 6)
        await stage.register(3)
        await soon()
        assert Counter(state[2] for state in await stage.states(topic) if state) == {3: 2, None: 4}
        assert await stage.hand_over_all() == 2
        await soon()
        assert Counter(await stage.leaders(topic)) == {1: 2, 2: 2, 3: 2}

    on_stage(scenario)


def test_a_drain_with_others_empties_a_broker_and_one_without_leaves_it_as_it_is() -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        await stage.register(2, draining=True)
        await soon()
        await stage.hand_over_all()
        await soon()
        assert Counter(await stage.leaders(topic)) == {1: 4}
        await stage.end(2)
        await stage.register(1, draining=True)
        await soon()
        assert await stage.states(topic) == [state for state in await stage.states(topic) if state and state[2] is None]
        await stage.register(3)
        await soon()
        assert await stage.hand_over_all() == 4

    on_stage(scenario)


def test_a_move_whose_target_dies_is_carried_out_and_the_target_replaced() -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        await stage.register(3)
        await soon()
        assert 3 in {state[2] for state in await stage.states(topic) if state}
        await stage.end(3)
        await soon()
        assert 3 in {state[2] for state in await stage.states(topic) if state}, "the leader may have handed over"
        assert not stage.sealed(3), "it leads nothing yet"
        await stage.hand_over_all()
        await soon()
        assert stage.sealed(3)
        assert Counter(await stage.leaders(topic)) == {1: 2, 2: 2}

    on_stage(scenario)


def test_a_leader_that_does_not_hand_over_in_time_loses_its_registration_and_then_its_session() -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        await stage.register(2, draining=True)
        await asyncio.sleep(RELEASE_TIMEOUT_S - 5)
        assert await stage.sqlite.get(LAYOUT.broker("b2")) is not None
        await asyncio.sleep(10)
        assert await stage.sqlite.get(LAYOUT.broker("b2")) is None
        assert stage.sealed(2)
        assert Counter(await stage.leaders(topic)) == {1: 4}

    on_stage(scenario)


def test_a_leader_that_hands_over_slowly_but_in_time_keeps_its_registration() -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        for draining in (True, False) * 3:
            await stage.register(2, draining=draining)
            await asyncio.sleep(RELEASE_TIMEOUT_S * 0.8)
            await stage.hand_over_all()
            await soon()
        await asyncio.sleep(RELEASE_TIMEOUT_S * 2)
        assert await stage.sqlite.get(LAYOUT.broker("b2")) is not None
        assert Counter(await stage.leaders(topic)) == {1: 2, 2: 2}

    on_stage(scenario)


def test_a_broker_that_begins_a_new_session_just_then_is_not_expelled_for_its_last_one() -> None:
    async def scenario(stage: Stage) -> None:
        topic, contender = await led_by_two(stage)
        await stage.register(2, draining=True)
        await asyncio.sleep(RELEASE_TIMEOUT_S - 1)
        again = encode_registration(BrokerRegistration(broker_id="b2", session=SessionId(22)))
        contender.store.before_transaction = lambda: stage.write(Put(LAYOUT.broker("b2"), again))
        await asyncio.sleep(3)
        held = await stage.sqlite.get(LAYOUT.broker("b2"))
        assert held is not None
        assert held.value == again
        await stage.hand_over_all()
        await soon()
        assert Counter(await stage.leaders(topic)) == {1: 2, 22: 2}

    on_stage(scenario)


# ── topics that go ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_states_of_a_deleted_topic_are_forgotten_also_while_they_move() -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        kept = await stage.topic("kept", 2)
        await soon()
        await stage.register(3)
        await soon()
        await stage.topics.delete("orders")
        await soon()
        assert [state and state[2] for state in await stage.states(topic)] == await stage.leaders(topic), "who leads shall let go"
        await stage.hand_over_all()
        await asyncio.sleep(RELEASE_TIMEOUT_S * 2)
        assert {held.topic_id for held in await read_all(stage.sqlite, LAYOUT)} == {kept.id}
        assert await stage.leaders(topic) == [None] * 4
        assert all([await stage.sqlite.get(LAYOUT.broker(f"b{session}")) for session in (1, 2, 3)]), "no broker is blamed for it"

    on_stage(scenario)


@pytest.mark.slow
def test_partitions_of_a_topic_get_no_leader_before_the_watch_reports_its_deletion() -> None:
    """Their states were forgotten by the controller before. Epoch 0 would be given twice, and records written in both."""

    async def scenario(stage: Stage) -> None:
        topic, contender = await led_by_two(stage)
        apply, unreported = contender.topics._watched._apply, list[Sequence[Event]]()
        contender.topics._watched._apply = unreported.append  # each range has a watch of its own, and this one is behind
        await stage.write(Delete(LAYOUT.topic("orders")), *(Delete(LAYOUT.partition(partition(topic, n))) for n in range(4)))
        await asyncio.sleep(20)
        assert await stage.leaders(topic) == [None] * 4
        for events in unreported:
            apply(events)
        contender.topics._watched._apply = apply
        other = await stage.topic("other", 2)
        await soon()
        assert None not in await stage.leaders(other)
        assert await stage.leaders(topic) == [None] * 4

    on_stage(scenario)


def test_topics_that_are_gone_with_all_the_metadata_are_not_marked_as_deleted_on_the_bucket() -> None:
    """A restore would leave them out. The controller hears of the topics first: each range has a watch of its own."""

    async def scenario(stage: Stage) -> None:
        _, contender = await led_by_two(stage)
        contender.partitions._watched._apply = lambda events: None
        await stage.write(DeletePrefix(LAYOUT.root))
        await asyncio.sleep(60)
        assert contender.topics.topics() == ()
        assert [call.key for call in stage.bucket.calls if "/deleted-" in call.key] == []

    on_stage(scenario)


@pytest.mark.parametrize("heard", ["too late", "just then"])
def test_a_topic_that_metadata_of_a_backup_do_not_know_is_not_marked_as_deleted_on_the_bucket(
    heard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made since, and its leader has begun since. What is marked is deleted from the bucket."""

    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        contender = await stage.stand(1)
        made = [await stage.topic(name, 1) for name in ("one", "other")]
        await soon()
        leaders = {session: topic for topic in made for session in await stage.leaders(topic)}
        late = leaders[2]
        apply, unreported, reads = contender.partitions._watched._apply, list[Sequence[Event]](), list[object]()
        contender.partitions._watched._apply = unreported.append  # each range has a watch of its own, and this one is behind
        known = topics_registry.read_topic_ids

        async def reported_meanwhile(*args: object) -> object:
            found = await known(*args)  # type: ignore[arg-type]
            reads.append(found)
            while heard == "just then" and unreported:
                apply(unreported.pop(0))
            return found

        monkeypatch.setattr(controller_module, "read_topic_ids", reported_meanwhile)
        await stage.write(Delete(LAYOUT.topic(late.name)), Delete(LAYOUT.partition(partition(late, 0))))
        await stage.end(2)
        await asyncio.sleep(60)
        assert stage.sealed(2)
        assert contender.topics.topics() == (leaders[1],)
        assert reads
        assert [call.key for call in stage.bucket.calls if "/deleted-" in call.key] == []

    on_stage(scenario)


def test_a_topic_that_only_the_cache_does_not_know_keeps_its_states() -> None:
    async def scenario(stage: Stage) -> None:
        _, contender = await led_by_two(stage)
        contender.topics._watched._apply = lambda events: None
        late = await stage.topic("late", 1)
        await stage.put_state(late, 0, appointed(None, SessionId(1)))
        await soon()
        assert await stage.states(late) == [(1, 0, None)]

    on_stage(scenario)


def test_while_a_topic_can_not_be_read_no_state_is_forgotten_and_the_topics_are_not_read_over_and_over() -> None:
    async def scenario(stage: Stage) -> None:
        topic, contender = await led_by_two(stage)
        other = await stage.topic("other", 2)
        await soon()
        await stage.write(Put(LAYOUT.topic("damaged"), b"{"))
        await stage.topics.delete("orders")
        await soon()
        assert None not in await stage.states(topic)
        ranges = contender.store.ranges
        for count in range(3, 40):
            await stage.topics.alter("other", partition_count=count)
            await soon()
        assert contender.store.ranges - ranges <= 40, "once for each change of a topic, or once a minute"
        ranges = contender.store.ranges
        for _ in range(30):
            await stage.put_state(other, 0, appointed(None, SessionId(1)))
            await soon()
        assert contender.store.ranges <= ranges + 2
        await stage.write(Delete(LAYOUT.topic("damaged")))
        await asyncio.sleep(65)
        assert await stage.hand_over_all() == 4
        await asyncio.sleep(65)
        assert await stage.states(topic) == [None] * 4

    on_stage(scenario)


def test_history_that_is_compacted_while_the_topics_are_read_is_no_end_of_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        known = topics_registry.read_topic_ids
        holes = [RevisionCompacted(Revision(5))] * 3

        async def with_holes(*args: object) -> object:
            if holes:
                raise holes.pop()
            return await known(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(controller_module, "read_topic_ids", with_holes)
        await stage.topics.delete("orders")
        await soon()
        await stage.hand_over_all()
        await soon()
        assert await stage.states(topic) == [None] * 4

    on_stage(scenario)


def test_a_leader_that_does_not_let_go_of_a_deleted_topic_is_forgotten_when_its_session_is_sealed() -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        await stage.topics.delete("orders")
        await stage.end(2)
        await soon()
        assert stage.sealed(2)
        assert Counter(await stage.leaders(topic)) == {1: 2, None: 2}, "the one that lives may acknowledge records still"
        await asyncio.sleep(RELEASE_TIMEOUT_S + 5)
        assert stage.sealed(1)
        assert await stage.leaders(topic) == [None] * 4

    on_stage(scenario)


# ── what is damaged or too new ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("damage", ["unreadable", "newer"])
def test_one_state_that_can_not_be_changed_stops_no_other(damage: str) -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        victim = next(number for number, leader in enumerate(await stage.leaders(topic)) if leader == 2)
        newer = msgspec.json.encode(msgspec.structs.replace(appointed(None, SessionId(2)), format_version=FORMAT_VERSION + 1))
        await stage.write(Put(LAYOUT.partition(partition(topic, victim)), b"{" if damage == "unreadable" else newer))
        await soon()
        await stage.end(2)
        await soon()
        held = await stage.sqlite.get(LAYOUT.partition(partition(topic, victim)))
        assert held is not None
        assert held.value in (b"{", newer)
        others = [msgspec.json.decode(item.value, type=PartitionState).leader_session for item in await all_but(stage, held)]
        assert others == [1, 1, 1]

    on_stage(scenario)


async def all_but(stage: Stage, one: KeyValue) -> list[KeyValue]:
    return [item for item in (await stage.sqlite.range(LAYOUT.partitions)).items if item.key != one.key]


# ── the controller's own trouble ────────────────────────────────────────────────────────────────────────────────────────


def test_metadata_that_fail_are_asked_again_and_what_was_due_is_done_then() -> None:
    async def scenario(stage: Stage) -> None:
        topic, contender = await led_by_two(stage)
        contender.store.down = unavailable()
        await stage.end(2)
        await asyncio.sleep(60)
        assert Counter(await stage.leaders(topic)) == {1: 2, 2: 2}
        contender.store.down = None
        await asyncio.sleep(10)
        assert Counter(await stage.leaders(topic)) == {1: 4}

    on_stage(scenario)


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_decision_whose_answer_is_lost_is_written_once(lost: str) -> None:
    async def scenario(stage: Stage) -> None:
        topic, contender = await led_by_two(stage)
        contender.store.lose_answers, contender.store.lose_requests = 2 * (lost == "answer"), 2 * (lost == "request")
        await stage.end(2)
        await soon()
        assert sorted(state[1] for state in await stage.states(topic) if state) == [0, 0, 1, 1]

    on_stage(scenario)


def test_a_topic_that_can_not_be_mirrored_yet_does_not_keep_the_dead_from_being_replaced() -> None:
    """One slow object, or ten thousand new topics: neither may hold up a failover."""

    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)

        async def hang(key: str, body: object, *, crc32c: int | None = None) -> None:
            if key.startswith("topics/new/"):
                await asyncio.sleep(3600)
            await create(key, body, crc32c=crc32c)  # type: ignore[arg-type]

        create = stage.bucket.create
        stage.bucket.create = hang  # type: ignore[method-assign]
        new = await stage.topic("new", 1)
        await soon()
        assert await stage.leaders(new) == [None], "no record may lie on the bucket whose topic does not"
        await stage.end(2)
        await soon()
        assert Counter(await stage.leaders(topic)) == {1: 4}
        await asyncio.sleep(3600)
        assert await stage.leaders(new) == [1]

    on_stage(scenario)


def test_a_deletion_that_can_not_be_marked_yet_does_not_keep_a_leader_from_being_expelled() -> None:
    async def scenario(stage: Stage) -> None:
        topic, _ = await led_by_two(stage)
        gone = await stage.topic("gone", 1)
        await soon()

        async def refuse(key: str, body: object, *, crc32c: int | None = None) -> None:
            if "/deleted-" in key:
                raise Denied("AccessDenied")
            await create(key, body, crc32c=crc32c)  # type: ignore[arg-type]

        create = stage.bucket.create
        stage.bucket.create = refuse  # type: ignore[method-assign]
        await stage.topics.delete("gone")
        await soon()
        assert await stage.hand_over_all() == 1
        await stage.register(2, draining=True)
        await asyncio.sleep(RELEASE_TIMEOUT_S + 10)
        assert stage.sealed(2)
        assert Counter(await stage.leaders(topic)) == {1: 4}
        assert None not in await stage.states(gone), "it is not forgotten before it is marked"

    on_stage(scenario)


def test_a_controller_that_can_not_reach_the_bucket_lets_another_do_it() -> None:
    async def scenario(stage: Stage) -> None:
        topic, contender = await led_by_two(stage)
        await stage.register(3)
        await soon()
        await stage.hand_over_all()
        await soon()

        class Cut:
            """The bucket, as the first one sees it."""

            def __getattr__(self, name: str) -> object:
                async def refuse(*args: object, **how: object) -> None:
                    raise Unavailable("connection refused")

                return refuse

        contender.controller._bucket = Cut()  # type: ignore[assignment]
        await stage.stand(3)
        await stage.end(2)
        await asyncio.sleep(60)
        assert await stage.controller() == "b3 3"
        assert stage.sealed(2)
        assert 2 not in await stage.leaders(topic)

    on_stage(scenario)


@pytest.mark.slow
def test_a_cluster_at_rest_costs_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        _, contender = await led_by_two(stage)
        await soon()
        before = (len(contender.store.transactions), contender.store.ranges, len(stage.bucket.calls))
        await asyncio.sleep(86_400)
        assert (len(contender.store.transactions), contender.store.ranges, len(stage.bucket.calls)) == before

    on_stage(scenario)


@pytest.mark.parametrize(("plan_takes_s", "plans_max"), [(0.0, 31), (0.1, 3)])
def test_a_storm_of_changes_costs_a_few_plans_and_not_one_for_each(
    monkeypatch: pytest.MonkeyPatch, plan_takes_s: float, plans_max: int
) -> None:
    plans = 0

    async def slowly(work: object, *args: object) -> object:
        nonlocal plans
        plans += 1
        await asyncio.sleep(plan_takes_s)
        return work(*args)  # type: ignore[operator]

    monkeypatch.setattr(asyncio, "to_thread", slowly)

    async def scenario(stage: Stage) -> None:
        nonlocal plans
        await stage.register(1)
        topic = await stage.topic("orders", 1)
        await stage.stand(1)
        await asyncio.sleep(30)
        plans = 0
        for _ in range(300):  # in 0.6 s
            await stage.put_state(topic, 0, appointed(None, SessionId(1)))
            await asyncio.sleep(0.002)
        assert 1 <= plans <= plans_max
        larger = await stage.topics.alter("orders", partition_count=2)
        await asyncio.sleep(30)
        assert await stage.leaders(larger) == [1, 1], "the last change is heard of, too"

    on_stage(scenario)


def test_a_broker_that_dies_while_much_is_written_is_given_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "BATCH_DECISIONS_MAX", 10)

    async def scenario(stage: Stage) -> None:
        topic, contender = await led_by_two(stage, partitions=200)
        await stage.register(3)
        await soon()
        await stage.hand_over_all()
        await soon()
        transact = contender.store.transact
        written: list[SessionId] = []

        async def dies_meanwhile(compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
            puts = [put for put in operations if isinstance(put, Put) and put.key.startswith(LAYOUT.partitions)]
            given = [msgspec.json.decode(put.value, type=PartitionState) for put in puts]
            written.extend(state.leader_session for state in given)
            if given and len(written) == 20:
                await stage.end(3)
                await asyncio.sleep(0.1)  # it is heard of
            return await transact(compares, operations)

        monkeypatch.setattr(contender.store, "transact", dies_meanwhile)
        await stage.end(2)
        await asyncio.sleep(60)
        assert 3 not in written[20:]
        assert set(await stage.leaders(topic)) == {1}

    on_stage(scenario)


def test_planning_for_many_partitions_does_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    planned_in: list[str] = []

    def plan(*question: object) -> Steps:
        planned_in.append(threading.current_thread().name)
        return Steps([], [], [], [])

    async def to_thread(work: object, *args: object) -> object:
        planned_in.append("handed to a thread")
        return work(*args)  # type: ignore[operator]

    monkeypatch.setattr(controller_module, "plan", plan)
    monkeypatch.setattr(asyncio, "to_thread", to_thread)

    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        await stage.stand(1)
        await soon()
        assert planned_in[0] == "handed to a thread"

    on_stage(scenario)
