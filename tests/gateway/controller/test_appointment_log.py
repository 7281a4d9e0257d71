"""Leaders are appointed by numbered batches on the bucket: whatever fails in between, and though the metadata exist twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec
import pytest

from gateway.controller import appointment_log as appointment_log_module
from gateway.controller import controller as controller_module
from gateway.controller.appointment_log import RETRY_S, AppointmentLog, Part
from metadata.cluster.leadership import LeadershipChange, PartitionState, appointed, handed_over, moving, read_all
from metadata.cluster.leadership_cache import PartitionCache
from metadata.controller.appointments import Batch, Progress, decode_batch, decode_progress, encode_batch
from metadata.errors import Denied, Fenced, OutcomeUnknown, Rejected, TidelogError, Unavailable
from metadata.model import Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.store.interface import Compare, Put
from metadata.topics.registry import TopicRegistry
from segments.bucket.layout import (
    APPOINTMENTS,
    SNAPSHOTS,
    TOPICS,
    appointments_key,
    parse_appointments_key,
    parse_snapshot_key,
    topic_mirror_key,
)
from segments.bucket.markers import begin_restoration
from segments.object_store.interface import unsynced
from tests.kit.gateway.contenders import LAYOUT, Contender, Stage, on_stage, soon
from tests.kit.metadata.faulty_store import FaultyStore
from tests.kit.segments.scripted_store import LOST_ANSWER, LOST_REQUEST, SILENCE, Act, ScriptedStore, fails, slow
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.virtual_loop import run, virtual_loop

PARTITION = TopicPartition(TopicId("a" * 32), Partition(0))
S1, S2, S3 = SessionId(1), SessionId(2), SessionId(3)


def batches(bucket: ScriptedStore) -> list[Batch]:
    """All that are on the bucket, in order."""
    numbers = {key: parse_appointments_key(key) for key in bucket.keys(APPOINTMENTS)}
    return [decode_batch(bucket.content(key), number=number, key=key) for key, number in numbers.items() if number is not None]


async def progress(stage: Stage) -> Progress:
    return decode_progress(await stage.sqlite.get(LAYOUT.appointments), key=LAYOUT.appointments)


async def ended(stage: Stage, contender: Contender) -> TidelogError:
    """The error with which the controller's broker ends."""
    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(contender.running, 60)
    error: BaseException = raised.value
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TidelogError)
    await contender.stop()
    stage.contenders = {session: other for session, other in stage.contenders.items() if other is not contender}
    return error


# ── the controller ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_leader_was_appointed_by_a_batch_on_the_bucket_and_batch_numbers_have_no_gap() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        topic = await stage.topic("orders", 4)
        await stage.stand(1)
        await soon()
        await stage.register(3)
        await soon()
        await stage.hand_over_all()
        await stage.end(2)
        await soon()
        written = batches(stage.bucket)
        assert [batch.number for batch in written] == list(range(1, len(written) + 1))
        last = {one.of: one.state for batch in written for one in batch.appointments}
        for partition, (state, _) in (await read_all(stage.sqlite, LAYOUT)).items():
            decided = last[partition]
            assert state.leader_session in (decided.leader_session, decided.moving_to)
        assert (await progress(stage)).number == len(written)
        assert len(set(await stage.leaders(topic))) == 2

    on_stage(scenario)


def test_where_nothing_is_decided_nothing_is_written() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        await stage.topic("orders", 2)
        await stage.stand(1)
        await soon()
        before = len(batches(stage.bucket))
        await stage.register(3)
        await soon()
        await stage.end(3)
        await asyncio.sleep(600)
        assert len(batches(stage.bucket)) == before == 2, "one proves the topic, one appoints its leaders"

    on_stage(scenario)


@pytest.mark.parametrize("act", [LOST_ANSWER, LOST_REQUEST, fails(Unavailable("503")), slow(3)], ids=str)
@pytest.mark.parametrize("number", [1, 2], ids=["proof", "leaders"])
def test_a_batch_whose_create_is_troubled_is_written_once(act: Act, number: int) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        topic = await stage.topic("orders", 2)
        stage.bucket.script("create", appointments_key(number), act)
        await stage.stand(1)
        await asyncio.sleep(10)
        assert set(await stage.leaders(topic)) == {1, 2}
        numbers = [batch.number for batch in batches(stage.bucket)]
        assert numbers in ([1, 2], [1, 2, 3] if number == 1 else []), "a proof without an answer is followed by another"
        assert [bool(batch.appointments) for batch in batches(stage.bucket)][-1:] == [True]
        assert await progress(stage) == Progress(numbers[-1], (), (await progress(stage)).applied_at)

    on_stage(scenario)


@pytest.mark.parametrize("lost", ["request", "answer"])
@pytest.mark.parametrize("transaction", range(4))
def test_a_transaction_whose_answer_is_lost_leaves_every_partition_led(lost: str, transaction: int) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        contender = await stage.stand(1)
        await soon()
        left = transaction

        async def lose() -> None:
            nonlocal left
            if left:
                left -= 1
                contender.store.before_transaction = lose
            elif lost == "request":
                contender.store.lose_requests = 1
            else:
                contender.store.lose_answers = 1

        contender.store.before_transaction = lose
        topic = await stage.topic("orders", 2)
        await asyncio.sleep(10)
        await stage.end(2)
        await asyncio.sleep(10)
        assert await stage.leaders(topic) == [1, 1]
        assert (await progress(stage)).number == len(batches(stage.bucket))

    on_stage(scenario)


def test_a_batch_that_a_controller_created_and_did_not_apply_is_applied_by_the_next() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        first = await stage.stand(1)
        await soon()
        stage.bucket.script("create", appointments_key(2), Act(answer_after_s=1e6))
        topic = await stage.topic("orders", 2)
        await soon()
        assert await stage.leaders(topic) == [None, None]
        await first.stop()
        del stage.contenders[1]
        await stage.write(*[Put(LAYOUT.controller, b"b9 9")])
        await stage.stand(2)
        await soon()
        assert await stage.leaders(topic) == [None, None], "another is the controller"
        await stage.sqlite.transact([], [])
        await stage.end(1)
        held = await stage.sqlite.get(LAYOUT.controller)
        assert held is not None
        lease = await stage.sqlite.grant_lease(1e6)
        await stage.write(Put(LAYOUT.controller, b"b9 9", lease))
        await stage.sqlite.revoke_lease(lease)
        await soon()
        written = batches(stage.bucket)
        assert {one.state.leader_session for one in written[1].appointments} == {1, 2}
        assert await stage.leaders(topic) == [2, 2], "the dead one of the batch was replaced by a later batch"
        assert [(state[0], state[1]) for state in await stage.states(topic) if state] != [(2, 0), (2, 0)]

    on_stage(scenario)


def test_a_create_of_a_deposed_controller_that_lands_late_is_applied_and_planned_on() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        first = await stage.stand(1)
        await soon()
        stage.bucket.script("create", appointments_key(2), Act(happens=False, happens_late_s=2.5, silent=True), slow(2))
        topic = await stage.topic("orders", 1)
        await asyncio.sleep(0.5)
        await first.stop()
        del stage.contenders[1]
        await stage.end(1)
        second = await stage.stand(2)
        await asyncio.sleep(1.0)
        assert len((await progress(stage)).pending) == 2
        assert [batch.number for batch in batches(stage.bucket)] == [1]
        await asyncio.sleep(10)
        assert not second.running.done()
        assert await stage.leaders(topic) == [2]
        assert [one.state.leader_session for one in batches(stage.bucket)[1].appointments] == [1]

    on_stage(scenario)


def test_a_leader_that_hands_over_while_its_successor_is_appointed_is_followed_by_it() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        topic = await stage.topic("orders", 2)
        await stage.put_state(topic, 0, moving(appointed(None, S2), S1))
        await stage.put_state(topic, 1, moving(appointed(None, S2), S3))
        stage.bucket.script("create", appointments_key(1), slow(1))
        await stage.stand(1)
        await asyncio.sleep(0.8)
        assert await stage.leaders(topic) == [2, 2]
        assert await stage.hand_over_all() == 2
        await asyncio.sleep(10)
        assert [state and state[:2] for state in await stage.states(topic)] == [(1, 1), (1, 2)]
        stored = await read_all(stage.sqlite, LAYOUT)
        spans = stored[TopicPartition(topic.id, Partition(1))][0].sessions
        assert [(span.leader_epoch, span.session) for span in spans] == [(0, 2), (1, 3), (2, 1)]

    on_stage(scenario)


# ── metadata that exist twice ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [1, 2, 500])
def test_a_controller_that_finds_a_batch_of_another_copy_ends_and_appoints_no_leader(number: int) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        topic = await stage.topic("orders", 1)
        stage.bucket.plant(appointments_key(number), encode_batch(Batch(number, "another's")))
        error = await ended(stage, await stage.stand(1))
        assert isinstance(error, Rejected)
        assert "or they exist twice" in error.message
        assert appointments_key(number) in error.message
        assert "tidelog cluster restore" in error.hint
        assert await stage.leaders(topic) == [None]

    on_stage(scenario)


def test_a_controller_seals_nothing_and_copies_nothing_where_another_copy_has_appointed() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        topic = await stage.topic("orders", 1)
        await stage.put_state(topic, 0, appointed(None, S2))
        stage.bucket.plant(appointments_key(5), encode_batch(Batch(5, "another's")))
        stage.bucket.script("list", APPOINTMENTS, slow(3))
        contender = await stage.stand(1)
        assert "or they exist twice" in (await ended(stage, contender)).message
        assert not stage.sealed(2)
        assert not stage.bucket.keys(TOPICS)

    on_stage(scenario)


def test_a_controller_whose_metadata_another_copy_has_overtaken_writes_no_last_snapshot() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.write(Put(LAYOUT.cluster_id, b"the-cluster"))
        await stage.register(1)
        await stage.topic("orders", 1)
        contender = await stage.stand(1)
        await soon()
        stage.bucket.plant(appointments_key(3), encode_batch(Batch(3, "another's")))
        await contender.controller.resign()
        assert not stage.bucket.keys(SNAPSHOTS)
        assert "or they exist twice" in (await ended(stage, contender)).message

    on_stage(scenario)


def test_a_controller_whose_metadata_another_copy_has_overtaken_marks_no_topic_as_deleted() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        await stage.topic("orders", 1)
        contender = await stage.stand(1)
        await soon()
        await stage.topics.delete("orders")
        await soon()
        stage.bucket.plant(appointments_key(9), encode_batch(Batch(9, "another's")))
        assert await stage.hand_over_all() == 1
        assert "or they exist twice" in (await ended(stage, contender)).message
        assert not [key for key in stage.bucket.keys(TOPICS) if "deleted-" in key]

    on_stage(scenario)


@pytest.mark.parametrize("number", [1, 2], ids=["of the proof", "of the leaders"])
def test_a_controller_that_loses_a_batch_number_to_another_copy_ends_and_appoints_no_leader(number: int) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        contender = await stage.stand(1)
        await soon()
        stage.bucket.script("create", appointments_key(number), slow(1))
        topic = await stage.topic("orders", 1)
        await asyncio.sleep(0.5)
        stage.bucket.plant(appointments_key(number), encode_batch(Batch(number, "another's")))
        assert "or they exist twice" in (await ended(stage, contender)).message
        assert await stage.leaders(topic) == [None]
        assert len(stage.bucket.keys(TOPICS)) == number - 1, "the proof comes before the registration"

    on_stage(scenario)


def test_metadata_that_were_restored_elsewhere_say_so() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        await begin_restoration(stage.bucket, "the-cluster", now_ms=0)
        stage.bucket.plant(appointments_key(1), encode_batch(Batch(1, "the restore's")))
        assert "were rebuilt from it meanwhile" in (await ended(stage, await stage.stand(1))).message

    on_stage(scenario)


def test_a_controller_that_was_deposed_meanwhile_does_not_believe_a_foreign_log() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        contender = await stage.stand(1)
        await soon()
        stage.bucket.script("create", appointments_key(1), slow(1))
        topic = await stage.topic("orders", 1)
        await asyncio.sleep(0.5)
        await stage.write(Put(LAYOUT.controller, b"b9 9"))
        stage.bucket.plant(appointments_key(1), encode_batch(Batch(1, "the next controller's")))
        await asyncio.sleep(10)
        assert not contender.running.done()
        assert await stage.leaders(topic) == [None]

    on_stage(scenario)


# ── a bucket in trouble ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("act", [fails(Unavailable("503")), SILENCE], ids=["refuses", "silent"])
def test_a_controller_whose_bucket_takes_no_batch_stands_aside(act: Act) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        await stage.stand(1)
        await soon()
        stage.bucket.script("create", appointments_key(1), *[act] * 1000)
        topic = await stage.topic("orders", 1)
        await asyncio.sleep(RETRY_S - 2)
        assert await stage.controller() == "b1 1"
        await asyncio.sleep(4)
        assert await stage.controller() is None
        stage.bucket.heal()
        await asyncio.sleep(10)
        assert await stage.leaders(topic) == [1]

    on_stage(scenario)


def test_while_the_bucket_takes_no_batch_the_controller_looks_on_and_expels() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        await stage.topic("orders", 2)
        await stage.stand(1)
        await soon()
        await stage.register(2, draining=True)
        await soon()
        stage.bucket.script("create", appointments_key(4), *[fails(Denied("AccessDenied"))] * 1000)
        await stage.topic("events", 1)
        await asyncio.sleep(40)
        assert await stage.sqlite.get(LAYOUT.broker("b2")) is None, "it did not hand over"
        assert stage.sealed(2)
        assert stage.bucket.count("create", appointments_key(4)) > 0, "no batch was denied"

    on_stage(scenario)


def test_a_topic_whose_registration_is_denied_holds_up_nothing_else() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.write(Put(LAYOUT.cluster_id, b"the-cluster"))
        await stage.register(1, 2)
        await stage.stand(1)
        kept = await stage.topic("orders", 2)
        await soon()
        secret = await stage.topics.create("secret", 1)
        stage.bucket.script(
            "create", topic_mirror_key("secret", secret.id, secret.revision), *[fails(Denied("AccessDenied"))] * 10_000
        )
        late = await stage.topic("late", 2)
        await stage.topics.alter("orders", settings={"retention.ms": "5"})
        await stage.register(2, draining=True)
        await asyncio.sleep(120)
        assert await stage.leaders(secret) == [None]
        assert set(await stage.leaders(late)) <= {1, 2}
        assert len([key for key in stage.bucket.keys(TOPICS) if kept.id in key]) == 2, "the alteration is mirrored"
        assert await stage.sqlite.get(LAYOUT.broker("b2")) is None, "it did not hand over"
        assert len(batches(stage.bucket)) < 15

    on_stage(scenario)


def test_an_alteration_just_before_a_clean_stop_is_mirrored() -> None:
    """The next controller mirrors only what is later than the snapshot of that stop."""

    async def scenario(stage: Stage) -> None:
        await stage.write(Put(LAYOUT.cluster_id, b"the-cluster"))
        await stage.register(1)
        topic = await stage.topic("orders", 1)
        contender = await stage.stand(1)
        await asyncio.sleep(0.5)
        await stage.topics.alter("orders", settings={"retention.ms": "5"})
        await asyncio.sleep(0.1)
        await contender.controller.resign()
        assert len([key for key in stage.bucket.keys(TOPICS) if topic.id in key]) == 2

    on_stage(scenario)


@pytest.mark.slow
def test_a_bucket_that_denies_batches_for_long_does_not_fill_the_key_with_nonces() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        await stage.stand(1)
        await soon()
        stage.bucket.script("create", appointments_key(1), *[fails(Denied("AccessDenied"))] * 1000)
        topic = await stage.topic("orders", 1)
        await asyncio.sleep(600)
        assert stage.bucket.count("create", appointments_key(1)) > 20
        assert len((await progress(stage)).pending) == 1
        stage.bucket.heal()
        await asyncio.sleep(10)
        assert await stage.leaders(topic) == [1]

    on_stage(scenario)


@pytest.mark.parametrize(
    ("body", "says"), [(b"{", "cannot be read"), (encode_batch(Batch(7, "x")), "holds batch 7")], ids=["damaged", "another"]
)
def test_a_damaged_batch_stops_appointments_until_it_is_mended_and_the_log_names_it(
    body: bytes, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        topic = await stage.topic("orders", 1)
        stage.bucket.plant(appointments_key(1), body)
        contender = await stage.stand(1)
        await asyncio.sleep(30)
        assert await stage.leaders(topic) == [None]
        assert not contender.running.done()
        stage.bucket.remove(appointments_key(1))
        await asyncio.sleep(30)
        assert await stage.leaders(topic) == [1]

    on_stage(scenario)
    reported = [record.getMessage() for record in caplog.records]
    assert any(appointments_key(1) in message and says in message and "you may delete it" in message for message in reported)


def test_a_controller_that_cannot_read_a_pending_batch_stands_aside_for_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        stage.bucket.plant(appointments_key(1), b"{")
        await stage.stand(1)
        await stage.stand(2)
        await asyncio.sleep(30)

    on_stage(scenario)
    reported = {record.getMessage() for record in caplog.records}
    assert {"controller elected broker=b1", "controller elected broker=b2"} <= reported


@pytest.mark.parametrize("operation", ["list", "get", "create"])
def test_a_controller_that_may_not_use_the_appointments_stands_aside_for_others(
    operation: Literal["list", "get", "create"], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        key = APPOINTMENTS
        if operation == "get":
            key = appointments_key(1)
            stage.bucket.plant(key, encode_batch(Batch(1, "another's")))
        if operation == "create":
            key = appointments_key(1)
            await stage.topic("orders", 1)
        stage.bucket.script(operation, key, *[fails(Denied("AccessDenied"))] * 100)
        await stage.stand(1)
        await stage.stand(2)
        await asyncio.sleep(8)

    on_stage(scenario)
    logged = [record.getMessage() for record in caplog.records]
    assert {"controller elected broker=b1", "controller elected broker=b2"} <= set(logged)
    errors = [message for message in logged if "appointments/ on" in message]
    assert errors
    assert all("Allow the broker to list the bucket" in message for message in errors)
    assert len(errors) <= 6, "one each time that a broker becomes the controller"


@pytest.mark.parametrize("answer", [OutcomeUnknown, Unavailable])
def test_a_batch_whose_fsync_failed_ends_the_broker_and_is_not_applied(answer: type[TidelogError]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        topic = await stage.topic("orders", 1)
        happens = Act(happens=True, error=unsynced(answer, "the fsync failed", hint="", key=appointments_key(1)))
        stage.bucket.script("create", appointments_key(1), happens)
        error = await ended(stage, await stage.stand(1))
        assert "may not be durable: the fsync failed" in error.message
        assert await stage.leaders(topic) == [None]
        assert (await progress(stage)).number == 0

    on_stage(scenario)


def test_a_batch_whose_fsync_failed_before_a_snapshot_ends_the_broker() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.write(Put(LAYOUT.cluster_id, b"the-cluster"))
        await stage.register(1)
        contender = await stage.stand(1)
        await soon()
        unsure = unsynced(OutcomeUnknown, "the fsync failed", hint="", key=appointments_key(1))
        stage.bucket.script("create", appointments_key(1), Act(happens=True, error=unsure))
        await contender.controller.resign()
        assert not stage.bucket.keys(SNAPSHOTS)
        assert "may not be durable" in (await ended(stage, contender)).message

    on_stage(scenario)


# ── proofs: batches without appointments ────────────────────────────────────────────────────────────────────────────────────


def test_a_registration_an_alteration_a_snapshot_and_a_deletion_are_written_after_a_batch_of_their_own() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.write(Put(LAYOUT.cluster_id, b"the-cluster"))
        await stage.register(1)
        await stage.topic("orders", 1)
        contender = await stage.stand(1)
        await asyncio.sleep(5)
        numbers = [len(batches(stage.bucket))]
        await stage.topics.alter("orders", settings={"retention.ms": "5"})
        await asyncio.sleep(5)
        numbers.append(len(batches(stage.bucket)))
        await contender.controller.resign()
        numbers.append(len(batches(stage.bucket)))
        await stage.topics.delete("orders")
        await soon()
        await stage.hand_over_all()
        await asyncio.sleep(5)
        numbers.append(len(batches(stage.bucket)))
        assert numbers == [2, 3, 4, 5]
        assert [bool(batch.appointments) for batch in batches(stage.bucket)] == [False, True, False, False, False]
        assert [key.split("/")[-1].split("-")[0] for key in stage.bucket.keys(TOPICS)] == ["deleted", "topic", "topic"]
        assert [parse_snapshot_key(key) is not None for key in stage.bucket.keys(SNAPSHOTS)] == [True]

    on_stage(scenario)


@pytest.mark.parametrize("planted", [True, False])
def test_a_losing_copy_registers_no_alteration(planted: bool) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        await stage.topic("orders", 1)
        contender = await stage.stand(1)
        await asyncio.sleep(5)
        if planted:
            stage.bucket.plant(appointments_key(3), encode_batch(Batch(3, "another's")))
        await stage.topics.alter("orders", settings={"retention.ms": "5"})
        if planted:
            assert "or they exist twice" in (await ended(stage, contender)).message
        await asyncio.sleep(5)
        assert len(stage.bucket.keys(TOPICS)) == (1 if planted else 2)

    on_stage(scenario)


@pytest.mark.parametrize("act", [LOST_ANSWER, LOST_REQUEST, slow(3)], ids=str)
def test_a_proof_whose_create_is_troubled_ends_with_a_batch_whose_nonce_was_noted_for_it(act: Act) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.write(Put(LAYOUT.cluster_id, b"the-cluster"))
        await stage.register(1)
        contender = await stage.stand(1)
        await soon()
        stage.bucket.script("create", appointments_key(1), act)
        await contender.controller.resign()
        (key,) = stage.bucket.keys(SNAPSHOTS)
        position = parse_snapshot_key(key)
        assert position is not None
        assert position.number == (await progress(stage)).number == len(batches(stage.bucket)) >= 1

    on_stage(scenario)


def test_names_that_tidelog_did_not_write_are_passed_over() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        topic = await stage.topic("orders", 1)
        for name in ("notes.txt", "1", f"{1:020d}.bak"):
            stage.bucket.plant(APPOINTMENTS + name, b"")
        await stage.stand(1)
        await soon()
        assert await stage.leaders(topic) == [1]

    on_stage(scenario)


def test_old_batches_are_collected_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appointment_log_module, "BATCHES_KEPT", 3)
    monkeypatch.setattr(appointment_log_module, "COLLECTED_EVERY", 2)

    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        await stage.stand(1)
        for number in range(12):
            await stage.topic(f"topic-{number}", 1)
            await soon()
        numbers = [batch.number for batch in batches(stage.bucket)]
        assert numbers == list(range(numbers[0], 25))
        assert 3 <= len(numbers) <= 5

    on_stage(scenario)


def test_of_many_partitions_the_leaders_are_in_few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "BATCH_DECISIONS_MAX", 200)

    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        topic = await stage.topic("orders", 500)
        await stage.stand(1)
        await asyncio.sleep(60)
        assert Counter(await stage.leaders(topic)) == {1: 250, 2: 250}
        assert len(batches(stage.bucket)) == 4, "one proves the topic"

    on_stage(scenario)


# ── copies of an etcd ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Copy:
    """An etcd, and the appointments of its controller."""

    def __init__(self, bucket: ScriptedStore, etcd: EtcdModel, name: str) -> None:
        self.etcd = etcd
        self.store = FaultyStore(etcd)
        self.partitions = PartitionCache(self.store, LAYOUT)
        self.following = asyncio.ensure_future(self.partitions.run())
        self.notes = 0

        def nonce() -> bytes:
            self.notes += 1
            return f"{name} {self.notes}".encode()

        self.log = AppointmentLog(bucket, self.store, self.partitions, LAYOUT, new_nonce=nonce, gave_up=lambda: None)

    async def guard(self) -> Sequence[Compare]:
        held = await self.etcd.get(LAYOUT.controller)
        assert held is not None
        return [Compare(LAYOUT.controller, held.mod_revision)]

    async def state(self) -> PartitionState | None:
        held = (await read_all(self.etcd, LAYOUT)).get(PARTITION)
        return held[0] if held is not None else None

    async def appoint(self, decide: Callable[[PartitionState], PartitionState]) -> None:
        """Decides on the partition as it is stored, and appoints."""
        state, revision = (await read_all(self.etcd, LAYOUT))[PARTITION]
        await self.partitions.wait_for(revision, timeout_s=None)
        await self.log.appoint([Part([LeadershipChange(PARTITION, revision, decide(state))])], await self.guard())


def with_copies(scenario: Callable[[ScriptedStore, Copy, Callable[[], Copy]], Awaitable[None]]) -> None:
    """The partition is led by session 1. The third argument copies the etcd."""

    async def main() -> None:
        bucket = ScriptedStore()
        etcd = EtcdModel(virtual_loop().time)
        await etcd.transact([], [Put(LAYOUT.controller, b"b1 1")])
        await etcd.transact([], [Put(LAYOUT.partition(PARTITION), msgspec.json.encode(appointed(None, S1)))])
        older = Copy(bucket, etcd, "older")
        made = [older]

        def copy() -> Copy:
            made.append(Copy(bucket, etcd.copy(), "newer"))
            return made[-1]

        await scenario(bucket, older, copy)
        for each in made:
            each.following.cancel()
            await asyncio.wait([each.following])

    run(main())


def test_of_two_copies_one_alone_appoints() -> None:
    async def scenario(bucket: ScriptedStore, older: Copy, copy: Callable[[], Copy]) -> None:
        newer = copy()
        await older.appoint(lambda state: appointed(state, S2))
        with pytest.raises(Rejected, match="or they exist twice") as raised:
            await newer.appoint(lambda state: appointed(state, S3))
        assert newer.log.ending is raised.value
        assert await newer.state() == appointed(None, S1)
        await older.appoint(lambda state: moving(state, S1))

    with_copies(scenario)


def test_a_copy_that_was_made_while_first_leaders_are_appointed_appoints_the_same() -> None:
    """In a topic whose leader epochs begin above 0, since another topic was deleted before."""

    async def scenario(bucket: ScriptedStore, older: Copy, copy: Callable[[], Copy]) -> None:
        topics = TopicRegistry(older.etcd, LAYOUT)
        await topics.create("old", 1)
        await topics.delete("old")
        topic = await topics.create("orders", 1)
        assert topic.first_leader_epoch > 0
        partition = TopicPartition(topic.id, Partition(0))
        first = LeadershipChange(partition, Revision(0), appointed(None, S1, first_epoch=topic.first_leader_epoch))
        part = Part([first], [Compare(LAYOUT.topic("orders"), topic.revision)])
        bucket.script("create", appointments_key(1), slow(1))
        appointing = asyncio.ensure_future(older.log.appoint([part], await older.guard()))
        await asyncio.sleep(0.5)
        newer = copy()
        await appointing
        await newer.log.recover(await newer.guard())
        states = [(await read_all(each.etcd, LAYOUT))[partition][0] for each in (older, newer)]
        assert states == [first.state, first.state]

    with_copies(scenario)


def test_a_copy_that_was_made_while_a_batch_is_created_applies_the_same_batch() -> None:
    async def scenario(bucket: ScriptedStore, older: Copy, copy: Callable[[], Copy]) -> None:
        bucket.script("create", appointments_key(1), slow(1))
        appointing = asyncio.ensure_future(older.appoint(lambda state: appointed(state, S2)))
        await asyncio.sleep(0.5)
        newer = copy()
        await appointing
        await newer.log.recover(await newer.guard())
        assert await newer.state() == await older.state() == appointed(appointed(None, S1), S2)
        await newer.appoint(lambda state: appointed(state, S3))
        with pytest.raises(Rejected, match="or they exist twice"):
            await older.appoint(lambda state: moving(state, S1))

    with_copies(scenario)


def test_a_copy_in_which_the_leader_has_handed_over_meanwhile_applies_the_same_batch() -> None:
    async def scenario(bucket: ScriptedStore, older: Copy, copy: Callable[[], Copy]) -> None:
        await older.appoint(lambda state: moving(state, S2))
        bucket.script("create", appointments_key(2), slow(1))
        appointing = asyncio.ensure_future(older.appoint(lambda state: appointed(state, S3)))
        await asyncio.sleep(0.5)
        newer = copy()
        state, revision = (await read_all(newer.etcd, LAYOUT))[PARTITION]
        over = handed_over(state, SegmentSeq(4), {S1})
        key = LAYOUT.partition(PARTITION)
        assert (await newer.etcd.transact([Compare(key, revision)], [Put(key, msgspec.json.encode(over))])).succeeded
        await appointing
        await newer.log.recover(await newer.guard())
        for found in (await newer.state(), await older.state()):
            assert found is not None
            assert [(span.leader_epoch, span.session) for span in found.sessions] == [(0, 1), (1, 2), (2, 3)]

    with_copies(scenario)


def test_a_copy_that_is_far_behind_can_not_take_a_number_that_was_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appointment_log_module, "BATCHES_KEPT", 1)

    async def scenario(bucket: ScriptedStore, older: Copy, copy: Callable[[], Copy]) -> None:
        newer = copy()
        await newer.log.recover(await newer.guard())
        for session in (S2, S3, S2):
            await older.appoint(lambda state, session=session: appointed(state, session))  # type: ignore[misc]
        await older.log.collect()
        assert bucket.keys(APPOINTMENTS) == [appointments_key(3)]
        with pytest.raises(Rejected, match="or they exist twice"):
            await newer.appoint(lambda state: appointed(state, S3))
        assert bucket.has(appointments_key(1)), "the number was free"
        assert await newer.state() == appointed(None, S1)
        with pytest.raises(Rejected, match="or they exist twice"):
            await newer.log.recover(await newer.guard())
        await older.appoint(lambda state: moving(state, S1))

    with_copies(scenario)


def test_a_batch_that_is_cancelled_in_the_middle_is_applied_or_was_never_written() -> None:
    async def scenario(bucket: ScriptedStore, older: Copy, copy: Callable[[], Copy]) -> None:
        for answered, expected in ((Act(after_s=1), 0), (Act(answer_after_s=1), 1)):
            bucket.script("create", appointments_key(1), answered)
            appointing = asyncio.ensure_future(older.appoint(lambda state: appointed(state, S2)))
            await asyncio.sleep(0.5)
            appointing.cancel()
            await asyncio.wait([appointing])
            await older.log.recover(await older.guard())
            found = await older.state()
            assert found is not None
            assert found.leader_epoch == expected
        await older.appoint(lambda state: appointed(state, S3))
        assert [batch.number for batch in batches(bucket)] == [1, 2]

    with_copies(scenario)


def test_a_decision_on_a_state_that_has_changed_since_is_left_out() -> None:
    async def scenario(bucket: ScriptedStore, older: Copy, copy: Callable[[], Copy]) -> None:
        stale = LeadershipChange(PARTITION, Revision(1), appointed(appointed(None, S1), S3))
        await older.log.appoint([Part([stale])], await older.guard())
        assert batches(bucket) == []
        assert await older.state() == appointed(None, S1)

    with_copies(scenario)


def test_nothing_is_applied_under_the_guard_of_an_election_that_has_ended() -> None:
    async def scenario(bucket: ScriptedStore, older: Copy, copy: Callable[[], Copy]) -> None:
        guard = await older.guard()
        await older.log.recover(guard)
        await older.etcd.transact([], [Put(LAYOUT.controller, b"b2 2")])
        _, revision = (await read_all(older.etcd, LAYOUT))[PARTITION]
        with pytest.raises(Fenced):
            await older.log.appoint([Part([LeadershipChange(PARTITION, revision, appointed(appointed(None, S1), S2))])], guard)
        assert batches(bucket) == []
        assert await older.state() == appointed(None, S1)

    with_copies(scenario)


def test_a_batch_whose_controller_was_deposed_while_it_was_created_is_applied_by_the_next_one() -> None:
    async def scenario(bucket: ScriptedStore, older: Copy, copy: Callable[[], Copy]) -> None:
        guard = await older.guard()
        await older.log.recover(guard)
        _, revision = (await read_all(older.etcd, LAYOUT))[PARTITION]
        bucket.script("create", appointments_key(1), Act(after_s=1.0))
        change = LeadershipChange(PARTITION, revision, appointed(appointed(None, S1), S2))
        appointing = asyncio.create_task(older.log.appoint([Part([change])], guard))
        await asyncio.sleep(0.5)
        await older.etcd.transact([], [Put(LAYOUT.controller, b"b2 2")])
        with pytest.raises(Fenced):
            await appointing
        assert len(batches(bucket)) == 1
        assert await older.state() == appointed(None, S1), "only the controller applies a batch"

    with_copies(scenario)


def test_a_topic_that_is_gone_when_its_first_leaders_are_applied_again_gets_none() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        await stage.stand(1)
        await soon()
        stage.bucket.script("create", appointments_key(2), slow(1))
        gone = await stage.topic("gone", 1)
        await asyncio.sleep(0.5)
        await stage.topics.delete("gone")
        await asyncio.sleep(10)
        assert await stage.leaders(gone) == [None]
        kept = await stage.topic("kept", 1)
        await soon()
        assert await stage.leaders(kept) == [1]

    on_stage(scenario)


def test_a_topic_that_has_grown_when_its_first_leaders_are_applied_gets_them() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1)
        await stage.stand(1)
        await soon()
        stage.bucket.script("create", appointments_key(2), slow(1))
        await stage.topic("orders", 1)
        await asyncio.sleep(0.5)
        grown = await stage.topics.alter("orders", partition_count=2)
        await asyncio.sleep(10)
        assert await stage.leaders(grown) == [1, 1]

    on_stage(scenario)


def test_an_unknown_outcome_of_the_last_transaction_is_no_harm() -> None:
    async def scenario(bucket: ScriptedStore, older: Copy, copy: Callable[[], Copy]) -> None:
        applied = older.store.transact

        async def lost(compares: Sequence[Compare], operations: Sequence[object]) -> object:
            result = await applied(compares, operations)  # type: ignore[arg-type]
            if any(isinstance(each, Put) and b'"pending":[]' in each.value for each in operations):
                raise OutcomeUnknown("the answer was lost")
            return result

        older.store.transact = lost  # type: ignore[method-assign,assignment]
        with pytest.raises(OutcomeUnknown):
            await older.appoint(lambda state: appointed(state, S2))
        older.store.transact = applied  # type: ignore[method-assign]
        await older.appoint(lambda state: appointed(state, S3))
        assert [batch.number for batch in batches(bucket)] == [1, 2]

    with_copies(scenario)
