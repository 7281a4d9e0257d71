"""Batches on their way to leaders: order, refusals, room, and what becomes of a batch that no leader takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cluster.view import ClusterView
from gateway.proto import log_pb2
from gateway.proto.status import to_status
from gateway.routing import forward_sender, forwarder
from gateway.routing.forward_queue import ForwardedAppend
from gateway.routing.forwarder import ProduceForwarder
from gateway.routing.peer_channels import PeerChannels
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import (
    ConditionFailed,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    SessionFenced,
    Stopping,
    Throttled,
    TidelogError,
    Unavailable,
)
from metadata.model import Partition, Revision, SessionId, TopicId, TopicPartition
from segments.byte_budget import Admission, ByteBudget
from segments.deadline import Deadline
from segments.log.session_log import Acks, SessionLog
from segments.partition.partition_log import AS_PRODUCED
from segments.settings import KIB
from tests.kit.segments.batches import batch_of, header_of, sequenced_batch
from tests.simulation.virtual_loop import run as virtually

PARTITION = TopicPartition(TopicId("0" * 32), Partition(3))
LEADER = BrokerRegistration(broker_id="broker-2", session=SessionId(2), grpc_address="127.0.0.1:1")
NEXT = BrokerRegistration(broker_id="broker-3", session=SessionId(3), grpc_address="127.0.0.1:2")


class Leader:
    """The peers of a test: one that answers each call from `answers`, else takes everything."""

    def __init__(self) -> None:
        self.answers: list[list[TidelogError | None] | TidelogError] = []
        self.seen: list[list[bytes]] = []
        self.taken: list[bytes] = []
        self.frozen: set[str] = set()
        """Ids of those that never answer."""
        self.at_once = self.at_once_peak = 0
        self.open = asyncio.Event()
        self.open.set()
        self.slow: dict[str, asyncio.Event] = {}
        """By broker id: its calls wait for this, too."""

    async def call(
        self, peer: BrokerRegistration, _method: str, request: log_pb2.ProduceRequest, *_: object, **__: object
    ) -> object:
        batches = [append.record_batch for append in request.appends]
        self.seen.append(batches)
        self.at_once += 1
        self.at_once_peak = max(self.at_once, self.at_once_peak)
        try:
            if peer.broker_id in self.frozen:
                await asyncio.Event().wait()
            await self.open.wait()
            if peer.broker_id in self.slow:
                await self.slow[peer.broker_id].wait()
        finally:
            self.at_once -= 1
        answer = self.answers.pop(0) if self.answers else [None] * len(batches)
        if isinstance(answer, TidelogError):
            raise answer
        response = log_pb2.ProduceResponse()
        for batch, error in zip(batches, answer, strict=True):
            result = response.results.add()
            if error is not None:
                result.error.CopyFrom(to_status(error))
            else:
                result.placements.add(base_offset=len(self.taken), count=1)
                self.taken.append(batch)
        return response

    async def drop_others(self, _: object) -> None: ...

    async def close(self) -> None: ...


class Stage:
    """Batches of one partition, or of several, and a view of the cluster that a test changes."""

    def __init__(self, leader: Leader, *, leads: BrokerRegistration | None = LEADER) -> None:
        self.budget = ByteBudget(400 * KIB)
        self.leads = leads
        self.leads_alone: dict[TopicPartition, BrokerRegistration] = {}
        """Where others lead a partition than the rest."""
        self.others = {"broker-2": LEADER}
        self.is_stopping = False
        self._changed: Callable[[set[TopicPartition]], None] = lambda _: None
        view = SimpleNamespace(
            leader=self._leader,
            topics=SimpleNamespace(by_id=lambda _: SimpleNamespace(name="orders", id=PARTITION.topic_id, revision=Revision(7))),
            partitions=SimpleNamespace(
                subscribe=lambda changed: setattr(self, "_changed", changed),
                get=lambda partition: SimpleNamespace(leader_session=led.session) if (led := self._leader(partition)) else None,
            ),
            brokers=SimpleNamespace(subscribe=lambda _: None, brokers=self.others),
        )
        self.forwarding = ProduceForwarder(
            cast(Callable[[], SessionLog], lambda: pytest.fail("nothing is led here")),
            cast(ClusterView, view),
            cast(PeerChannels, leader),
            broker_id="broker-1",
            budget=self.budget,
            is_stopping=lambda: self.is_stopping,
        )

    def _leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        return self.leads_alone.get(partition, self.leads)

    def led_by(self, leader: BrokerRegistration | None, *partitions: TopicPartition) -> None:
        """Changes what the watches report."""
        self.leads = leader
        self._changed(set(partitions or (PARTITION,)))

    def append(
        self, batch: bytes, message: Admission | None = None, *, timeout_s: float = 5.0, partition: TopicPartition = PARTITION
    ) -> ForwardedAppend:
        return self.forwarding.append(
            partition,
            batch,
            header_of(batch),
            message or Admission(self.budget, 0, timeout_s=0),
            acks=Acks.ALL,
            deadline_s=asyncio.get_running_loop().time() + timeout_s,
            expected_offset=None,
            dates=AS_PRODUCED,
        )

    async def offset(self, waiting: ForwardedAppend, timeout_s: float = 5.0) -> int:
        decided: Any = await self.forwarding.outcome(waiting, Deadline.after(timeout_s))
        return int(decided.base_offset)


def run(scenario: Callable[[Stage, Leader], Awaitable[None]]) -> None:
    async def main() -> None:
        leader = Leader()
        stage = Stage(leader)
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(stage.forwarding.run())
            await asyncio.sleep(0)
            await scenario(stage, leader)
            running.cancel()
        assert stage.budget.bytes_used == 0, "all room is given back"

    asyncio.run(main())


def test_appends_that_come_while_a_message_is_on_its_way_go_with_the_next_in_order() -> None:
    async def scenario(stage: Stage, leader: Leader) -> None:
        batches = [batch_of(b"%d" % at) for at in range(10)]
        leader.open.clear()
        first = stage.append(batches[0])
        await asyncio.sleep(0.01)
        behind = [stage.append(batch) for batch in batches[1:]]
        leader.open.set()
        assert [await stage.offset(waiting) for waiting in (first, *behind)] == list(range(10))
        assert leader.seen == [batches[:1], batches[1:]]
        assert not stage.forwarding.has_queued(PARTITION)

    run(scenario)


def test_batches_that_the_old_leader_refused_are_sent_again_and_nothing_overtakes_them() -> None:
    async def scenario(stage: Stage, leader: Leader) -> None:
        batches = [batch_of(b"%d" % at) for at in range(4)]
        leader.answers = [[None, NotLeader("it leads no more"), NotLeader("it leads no more")], NoLeader("can't be reached")]
        waiting = [stage.append(batch) for batch in batches[:3]]
        while len(leader.seen) < 1:  # noqa: ASYNC110  # the leader of a test sets no event
            await asyncio.sleep(0)
        waiting.append(stage.append(batches[3]))
        assert [await stage.offset(batch) for batch in waiting] == [0, 1, 2, 3]
        assert leader.taken == batches

    run(scenario)


def test_a_batch_that_is_refused_for_good_takes_along_its_own_message_and_no_other() -> None:
    async def scenario(stage: Stage, leader: Leader) -> None:
        batches = [batch_of(b"%d" % at) for at in range(3)]
        unseen = Unavailable("append 1 was not looked at")
        leader.answers = [[ConditionFailed("another end"), unseen, unseen]]
        message = Admission(stage.budget, 0, timeout_s=0)
        refused = [stage.append(batches[0], message), stage.append(batches[1], message)]
        other = stage.append(batches[2])
        for waiting in refused:
            with pytest.raises(ConditionFailed):
                await stage.offset(waiting)
        assert await stage.offset(other) == 0
        assert leader.taken == batches[2:]

    run(scenario)


def test_a_lost_outcome_is_reported_as_unknown_and_not_retried() -> None:
    async def scenario(stage: Stage, leader: Leader) -> None:
        leader.answers = [OutcomeUnknown("the connection broke")]
        with pytest.raises(OutcomeUnknown):
            await stage.offset(stage.append(batch_of(b"a")))
        assert (len(leader.seen), leader.taken) == (1, [])

    run(scenario)


def test_a_batch_without_a_leader_in_time_is_refused_and_never_sent_later() -> None:
    async def scenario(stage: Stage, leader: Leader) -> None:
        stage.leads = None
        waiting = stage.append(batch_of(b"a"), timeout_s=0.05)
        with pytest.raises(NoLeader):
            await stage.offset(waiting, timeout_s=0.05)
        stage.leads = LEADER
        assert await stage.offset(stage.append(batch_of(b"b"))) == 0
        assert leader.taken == [batch_of(b"b")]

    run(scenario)


def test_a_slow_leader_takes_a_quarter_of_the_buffer_and_no_more() -> None:
    async def scenario(stage: Stage, leader: Leader) -> None:
        leader.open.clear()
        waiting = [stage.append(batch_of(bytes(30 * KIB))) for _ in range(3)]
        with pytest.raises(Throttled, match="wait to be forwarded"):
            stage.append(batch_of(bytes(30 * KIB)))
        assert stage.budget.bytes_used <= stage.budget.bytes_max // 4
        leader.open.set()
        assert [await stage.offset(batch) for batch in waiting] == [0, 1, 2]

    run(scenario)


async def until_seen(leader: Leader, messages: int) -> None:
    while len(leader.seen) < messages:  # noqa: ASYNC110  # the leader of a test sets no event
        await asyncio.sleep(0)


def test_the_next_leader_is_looked_at_again_soon_however_long_there_was_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "PAUSE_S_MAX", 1_000.0)

    async def scenario(stage: Stage, leader: Leader) -> None:
        stage.led_by(None)
        waiting = stage.append(batch_of(b"1"))
        stage.forwarding._queues[PARTITION].pause_s = 500.0
        leader.answers = [[NotLeader("it is still taking over")]]
        stage.led_by(LEADER)
        assert await stage.offset(waiting) == 0
        assert len(leader.seen) == 2

    run(scenario)


def test_idempotent_batches_of_a_frozen_leader_go_to_the_next_and_plain_ones_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarder, "FORMER_LEADER_S", 0.0)

    async def scenario(stage: Stage, leader: Leader) -> None:
        leader.frozen.add("broker-2")
        sequenced = [sequenced_batch(5, 0), sequenced_batch(5, 1)]
        waiting = [stage.append(batch) for batch in sequenced]
        plain = stage.append(batch_of(b"plain"))
        await until_seen(leader, 1)
        behind = stage.append(sequenced_batch(5, 2))
        stage.led_by(None)  # its lease has ended
        await asyncio.sleep(0.05)
        assert not plain.outcome.done()
        assert len(leader.seen) == 1, "no broker leads yet"
        stage.led_by(NEXT)
        assert [await stage.offset(append) for append in (*waiting, behind)] == [0, 1, 2]
        with pytest.raises(OutcomeUnknown, match="has been replaced"):
            await stage.offset(plain)
        assert leader.taken == [*sequenced, sequenced_batch(5, 2)]
        assert leader.at_once == 0, "the call to the frozen one was ended"

    run(scenario)


def test_the_late_answer_to_a_message_that_was_given_up_is_not_taken_for_that_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "FORMER_LEADER_S", 0.0)

    async def scenario(stage: Stage, leader: Leader) -> None:
        stays = TopicPartition(PARTITION.topic_id, Partition(4))
        leader.slow = {"broker-2": asyncio.Event(), "broker-3": asyncio.Event()}
        moved, kept = stage.append(sequenced_batch(5, 0)), stage.append(sequenced_batch(6, 0), partition=stays)
        await until_seen(leader, 1)
        assert len(leader.seen[0]) == 2, "both go with one message"
        stage.leads_alone[PARTITION] = NEXT
        stage.led_by(LEADER, PARTITION)
        await until_seen(leader, 2)
        assert leader.seen[1] == [sequenced_batch(5, 0)], "given up, and sent to the next leader"
        leader.answers = [[SessionFenced("it leads no more"), None]]
        leader.slow["broker-2"].set()
        assert await stage.offset(kept) == 0
        assert not moved.outcome.done()
        behind = stage.append(sequenced_batch(5, 1))
        await asyncio.sleep(0.05)
        assert len(leader.seen) == 2, "one message of a partition is on its way, and nothing is sent a third time"
        leader.slow["broker-3"].set()
        assert [await stage.offset(moved), await stage.offset(behind)] == [1, 2]

    run(scenario)


def test_a_leader_that_is_slow_and_hands_over_may_answer_still() -> None:
    async def scenario(stage: Stage, leader: Leader) -> None:
        leader.open.clear()
        plain = stage.append(batch_of(b"plain"))
        await until_seen(leader, 1)
        stage.led_by(NEXT)
        leader.open.set()
        assert await stage.offset(plain) == 0
        assert len(leader.seen) == 1

    run(scenario)


def test_an_answer_that_was_lost_is_asked_for_again_where_that_is_safe() -> None:
    async def scenario(stage: Stage, leader: Leader) -> None:
        leader.answers = [OutcomeUnknown("the connection broke"), NoLeader("can't be reached"), OutcomeUnknown("broke again")]
        assert await stage.offset(stage.append(sequenced_batch(5, 0))) == 0
        assert len(leader.seen) == 4

    run(scenario)


def test_many_partitions_share_messages_and_calls() -> None:
    async def scenario(stage: Stage, leader: Leader) -> None:
        partitions = [TopicPartition(PARTITION.topic_id, Partition(number)) for number in range(5_000)]
        leader.open.clear()
        batch = batch_of(b"a")
        stage.budget.bytes_max = 1 << 30
        waiting = [stage.append(batch, partition=partition) for partition in partitions]
        await until_seen(leader, 5)
        leader.open.set()
        assert sorted([await stage.offset(append) for append in waiting]) == list(range(5_000))
        assert len(leader.seen) == 5
        assert all(len(message) == forward_sender.MESSAGE_APPENDS for message in leader.seen)

    run(scenario)


def test_a_client_that_hangs_up_leaves_what_it_had_appended_and_its_room_is_given_back_once() -> None:
    async def scenario(stage: Stage, leader: Leader) -> None:
        leader.open.clear()
        waiting = stage.append(batch_of(b"a"))
        async with asyncio.TaskGroup() as clients:
            client = clients.create_task(stage.offset(waiting))
            await until_seen(leader, 1)
            client.cancel()
        assert stage.budget.bytes_used > 0
        leader.open.set()
        await asyncio.wait((waiting.outcome,))
        assert leader.taken == [batch_of(b"a")]

    run(scenario)


def test_an_append_is_refused_at_once_when_the_only_broker_stops() -> None:
    async def scenario(stage: Stage, leader: Leader) -> None:
        stage.leads, stage.is_stopping = None, True
        stage.others.clear()
        with pytest.raises(Stopping):
            await stage.offset(stage.append(batch_of(b"a")))

    run(scenario)


def test_a_broker_that_stops_is_quiet_once_nothing_is_on_its_way_and_nothing_came_for_a_while() -> None:
    async def main() -> None:
        leader = Leader()
        stage = Stage(leader)
        stage.is_stopping = True
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(stage.forwarding.run())
            await asyncio.sleep(0)
            leader.open.clear()
            began_s = clock()
            quiet = tasks.create_task(stage.forwarding.wait_until_quiet(quiet_s=0.2, timeout_s=5))
            await asyncio.sleep(0.1)
            waiting = stage.append(batch_of(b"a"))
            await asyncio.sleep(1)
            assert not quiet.done(), "a batch is on its way"
            leader.open.set()
            assert await stage.offset(waiting) == 0
            await quiet
            assert clock() - began_s == pytest.approx(1.1, abs=0.05), "the last one came longer ago"
            assert await stage.offset(stage.append(batch_of(b"b"))) == 1
            began_s = clock()
            await stage.forwarding.wait_until_quiet(quiet_s=0.2, timeout_s=5)
            assert clock() - began_s == pytest.approx(0.2, abs=0.05)

            leader.open.clear()
            stage.append(batch_of(b"c"), timeout_s=100)
            began_s = clock()
            await stage.forwarding.wait_until_quiet(quiet_s=0.2, timeout_s=5)
            assert clock() - began_s == pytest.approx(5, abs=0.1), "not without end"
            stage.others.clear()
            began_s = clock()
            await stage.forwarding.wait_until_quiet(quiet_s=0.2, timeout_s=5)
            assert clock() == began_s, "no other broker could lead: there is nowhere to go"
            running.cancel()

    virtually(main())
