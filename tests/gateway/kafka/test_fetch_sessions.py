"""Fetch sessions (KIP-227): whose they are, their epochs and bounds, and that a client with one misses nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kafka.errors import ErrorCode
from gateway.kafka.fetch_sessions import EVICTION_S, AskedPartition, FetchPlan, FetchSessions, Owner
from gateway.kafka.protocol.hot_messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

ALICE, BOB = Owner("kafka", "alice"), Owner("kafka", "bob")
FULL, LAST = 0, -1
TopicPartitionName = tuple[str, int]


def request(
    session_id: int = 0,
    epoch: int = FULL,
    asked: Mapping[TopicPartitionName, int] | None = None,
    forgotten: Iterable[TopicPartitionName] = (),
) -> FetchRequest:
    """`asked`: the offset to read from, by topic and partition."""
    topics: dict[str, list[FetchPartition]] = {}
    for (topic, number), offset in (asked or {}).items():
        topics.setdefault(topic, []).append(FetchPartition(partition=number, fetch_offset=offset))
    gone = [ForgottenTopic(topic=topic, partitions=[number]) for topic, number in forgotten]
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=name, partitions=partitions) for name, partitions in topics.items()],
        forgotten_topics_data=gone,
    )


def sessions_of(*, sessions_max: int = 10, partitions_max: int = 100) -> FetchSessions:
    ids = itertools.count(1)
    return FetchSessions(lambda: next(ids), sessions_max=sessions_max, partitions_max=partitions_max)


def begin(sessions: FetchSessions, asked: FetchRequest, *, owner: Owner = ALICE, now_s: float = 0.0) -> FetchPlan:
    plan = sessions.begin(asked, owner=owner, by_id=False, now_s=now_s)
    assert isinstance(plan, FetchPlan), plan
    return plan


def error(sessions: FetchSessions, asked: FetchRequest, *, owner: Owner = ALICE, by_id: bool = False) -> ErrorCode:
    plan = sessions.begin(asked, owner=owner, by_id=by_id, now_s=0.0)
    assert isinstance(plan, ErrorCode)
    return plan


def data_of(asked: AskedPartition, *, high_watermark: int = 0, records: bytes = b"", code: int = 0) -> PartitionData:
    return PartitionData(
        partition_index=asked.request.partition,
        error_code=code,
        high_watermark=high_watermark,
        log_start_offset=0,
        records=[records] if records else (),
    )


def answer(plan: FetchPlan, *, now_s: float = 0.0, code: int = 0) -> FetchResponse:
    return plan.answer([data_of(each, code=code) for each in plan.take_all()], now_s=now_s)


def opened(sessions: FetchSessions, *partitions: TopicPartitionName, owner: Owner = ALICE, now_s: float = 0.0) -> int:
    plan = begin(sessions, request(asked=dict.fromkeys(partitions, 0)), owner=owner, now_s=now_s)
    return answer(plan, now_s=now_s).session_id


def partitions_in(response: FetchResponse) -> list[TopicPartitionName]:
    return [(topic.topic, each.partition_index) for topic in response.responses for each in topic.partitions]


def partitions_of(plan: FetchPlan) -> list[TopicPartitionName]:
    return [(each.topic, each.request.partition) for each in plan.take_all()]


A, B, C = ("orders", 0), ("orders", 1), ("users", 0)


def test_a_full_fetch_is_answered_with_every_partition_and_names_its_session() -> None:
    sessions = sessions_of()
    response = answer(begin(sessions, request(asked={A: 0, C: 0, B: 0})))
    assert (response.session_id, response.error_code, partitions_in(response)) == (1, 0, [A, B, C])
    assert (sessions.figures.sessions, sessions.figures.partitions) == (1, 3)


def test_a_fetch_in_the_last_epoch_opens_no_session_and_closes_the_one_that_it_names() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, A)
    response = answer(begin(sessions, request(session_id, LAST, {A: 0, B: 0})))
    assert (response.session_id, partitions_in(response)) == (0, [A, B])
    assert sessions.figures.sessions == sessions.figures.partitions == 0


def test_an_incremental_fetch_reads_all_partitions_and_answers_those_that_changed() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, A, B, C)
    plan = begin(sessions, request(session_id, 1))
    assert partitions_of(plan) == [A, B, C]
    [a, b, c] = plan.take_all()
    response = plan.answer([data_of(a), data_of(b, high_watermark=7), data_of(c)], now_s=0.0)
    assert (response.session_id, partitions_in(response)) == (session_id, [B])


def test_news_of_a_partition_are_records_errors_bounds_and_another_broker_to_read_from() -> None:
    def response_to(data: PartitionData) -> list[TopicPartitionName]:
        sessions = sessions_of()
        plan = begin(sessions, request(opened(sessions, A), 1))
        plan.take_all()
        return partitions_in(plan.answer([data], now_s=0.0))

    [asked] = begin(sessions_of(), request(asked={A: 0})).take_all()
    assert response_to(data_of(asked)) == []
    assert response_to(data_of(asked, records=b"batch")) == [A]
    assert response_to(data_of(asked, code=ErrorCode.NOT_LEADER_OR_FOLLOWER)) == [A]
    assert response_to(data_of(asked, high_watermark=1)) == [A]
    for field, value in (
        ("log_start_offset", 3),
        ("preferred_read_replica", 2),
        ("diverging_epoch", FetchResponseEpochEndOffset(epoch=1, end_offset=2)),
    ):
        data = data_of(asked)
        setattr(data, field, value)
        assert response_to(data) == [A], field


def test_the_end_of_an_error_is_answered_though_nothing_else_changed() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, A)
    failing = begin(sessions, request(session_id, 1))
    assert partitions_in(answer(failing, code=ErrorCode.KAFKA_STORAGE_ERROR)) == [A]
    assert partitions_in(answer(begin(sessions, request(session_id, 2)))) == [A]
    assert partitions_in(answer(begin(sessions, request(session_id, 3)))) == []


def test_partitions_are_added_moved_and_forgotten_by_incremental_fetches() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, A, B)
    plan = begin(sessions, request(session_id, 1, {B: 5, C: 0}, forgotten=[A]))
    assert partitions_of(plan) == [B, C]
    assert [each.request.fetch_offset for each in plan.take_all()] == [5, 0]
    assert partitions_in(answer(plan)) == [C], "a new partition is answered, whatever it has"
    assert sessions.figures.partitions == 2


def test_a_partition_that_had_records_is_read_last_the_next_time() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, A, B, C)
    plan = begin(sessions, request(session_id, 1))
    plan.answer(
        [
            data_of(each, records=b"batch" if partition != C else b"")
            for each, partition in zip(plan.take_all(), [A, B, C], strict=True)
        ],
        now_s=0.0,
    )
    assert partitions_of(begin(sessions, request(session_id, 2))) == [C, A, B]


def test_a_session_without_partitions_ends() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, A)
    response = answer(begin(sessions, request(session_id, 1, forgotten=[A])))
    assert (response.session_id, response.error_code, partitions_in(response)) == (0, 0, [])
    assert error(sessions, request(session_id, 2)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert opened(sessions) == 0, "no session for a fetch of nothing"


@pytest.mark.parametrize("epoch", [0x7FFF_FFFF, 2, -2, -0x8000_0000])
def test_another_epoch_than_the_next_is_refused_and_changes_nothing(epoch: int) -> None:
    sessions = sessions_of()
    session_id = opened(sessions, A)
    assert error(sessions, request(session_id, epoch, {B: 0}, forgotten=[A])) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert partitions_of(begin(sessions, request(session_id, 1))) == [A]
    assert error(sessions, request(session_id, 1)) == ErrorCode.INVALID_FETCH_SESSION_EPOCH, "it is used already"


@pytest.mark.parametrize("session_id", [0, -1, 999])
def test_an_unknown_session_is_refused(session_id: int) -> None:
    assert error(sessions_of(), request(session_id, 1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_epoch_after_the_largest_is_one() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, A)
    plan = begin(sessions, request(session_id, 1))
    session = plan.session
    assert session is not None
    session.epoch = 0x7FFF_FFFF
    begin(sessions, request(session_id, 0x7FFF_FFFF)).abandon()
    begin(sessions, request(session_id, 0x7FFF_FFFF))
    begin(sessions, request(session_id, 1))


def test_topics_are_named_by_id_or_by_name_for_the_whole_of_a_session() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, A)
    assert error(sessions, request(session_id, 1), by_id=True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert partitions_of(begin(sessions, request(session_id, 1))) == [A]


def test_a_session_serves_neither_another_principal_nor_another_listener_and_they_cannot_close_it() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, A)
    for outsider in (BOB, Owner("external", "alice")):
        assert error(sessions, request(session_id, 1), owner=outsider) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        begin(sessions, request(session_id, LAST, {A: 0}), owner=outsider)
    assert partitions_of(begin(sessions, request(session_id, 1))) == [A]


def test_a_request_that_gets_no_answer_may_be_repeated_in_its_epoch() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, A)
    begin(sessions, request(session_id, 1, {B: 0})).abandon()
    plan = begin(sessions, request(session_id, 1, {B: 0}))
    assert partitions_of(plan) == [A, B]
    assert partitions_in(answer(plan)) == [B]
    plan.abandon()
    begin(sessions, request(session_id, 1))


def test_a_full_cache_opens_no_session_until_one_is_idle() -> None:
    sessions = sessions_of(sessions_max=2)
    first, second = opened(sessions, A), opened(sessions, A)
    assert opened(sessions, A, now_s=EVICTION_S) == 0
    answer(begin(sessions, request(first, 1), now_s=EVICTION_S))
    assert opened(sessions, A, now_s=EVICTION_S + 1) == 3, "in place of the second, which is idle"
    assert error(sessions, request(second, 1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (sessions.figures.sessions, sessions.figures.evicted) == (2, 1)


def test_a_larger_session_takes_the_place_of_a_smaller_one_that_is_old() -> None:
    sessions = sessions_of(sessions_max=2)
    large, small = opened(sessions, A, B), opened(sessions, A)
    for session_id in (large, small):
        answer(begin(sessions, request(session_id, 1), now_s=EVICTION_S))
    later_s = EVICTION_S + 1
    assert opened(sessions, A, now_s=later_s) == 0, "not larger"
    assert opened(sessions, A, B, now_s=later_s) != 0
    assert error(sessions, request(small, 2)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert opened(sessions, A, B, C, now_s=later_s) != 0, "in place of the other old one"
    assert opened(sessions, A, B, C, ("users", 1), now_s=later_s) == 0, "the others are young"


def test_partitions_of_all_sessions_are_bounded() -> None:
    sessions = sessions_of(partitions_max=3)
    session_id = opened(sessions, A, B)
    assert opened(sessions, A, B) == 0
    assert opened(sessions, A) != 0
    assert error(sessions, request(session_id, 1, {C: 0})) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (sessions.figures.sessions, sessions.figures.partitions) == (1, 1)
    assert opened(sessions, A, B, C, now_s=EVICTION_S + 1) != 0, "in place of an idle one"


# ── a client with a session, beside one without ───────────────────────────────────────────────────────────────────────────


class Seen(NamedTuple):
    """What a consumer knows of a partition."""

    next_offset: int = 0
    high_watermark: int = -1
    code: int = 0


class Log:
    """Partitions that records are appended to, and that fail and recover. A fetch has at most `records_max` records."""

    def __init__(self) -> None:
        self.ends: dict[TopicPartitionName, int] = {}
        self.codes: dict[TopicPartitionName, int] = {}

    def data(self, asked: AskedPartition) -> PartitionData:
        partition = asked.topic, asked.request.partition
        if code := self.codes.get(partition, 0):
            return PartitionData(partition_index=partition[1], error_code=code, high_watermark=-1)
        end = self.ends.get(partition, 0)
        records = [b"%d" % offset for offset in range(asked.request.fetch_offset, end)][:2]
        return PartitionData(partition_index=partition[1], high_watermark=end, log_start_offset=0, records=records)


def take(seen: dict[TopicPartitionName, Seen], response: FetchResponse, partitions: Iterable[TopicPartitionName]) -> None:
    for topic in response.responses:
        for data in topic.partitions:
            partition = topic.topic, data.partition_index
            assert partition in partitions
            if data.error_code:
                seen[partition] = seen[partition]._replace(code=data.error_code)
                continue
            offsets = [int(bytes(each)) for each in data.records or ()]
            assert offsets == [*range(seen[partition].next_offset, seen[partition].next_offset + len(offsets))]
            seen[partition] = Seen(seen[partition].next_offset + len(offsets), data.high_watermark)


class SessionClient:
    """A consumer that keeps a session as Kafka's Java client does."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.seen: dict[TopicPartitionName, Seen] = {}
        self.session_id = 0
        self.epoch = FULL
        self.sent: dict[TopicPartitionName, int] = {}

    def fetch(self, sessions: FetchSessions, log: Log, *, now_s: float, is_lost: bool) -> None:
        wanted = {partition: seen.next_offset for partition, seen in self.seen.items()}
        if self.epoch == FULL:
            asked, forgotten = wanted, set[TopicPartitionName]()
        else:
            asked = {partition: offset for partition, offset in wanted.items() if self.sent.get(partition) != offset}
            forgotten = self.sent.keys() - wanted.keys()
        plan = sessions.begin(request(self.session_id, self.epoch, asked, forgotten), owner=self.owner, by_id=False, now_s=now_s)
        self.sent = wanted
        if isinstance(plan, ErrorCode):
            self.session_id = 0 if plan is ErrorCode.FETCH_SESSION_ID_NOT_FOUND else self.session_id
            self.epoch = FULL
            self.fetch(sessions, log, now_s=now_s, is_lost=is_lost)
            return
        response = plan.answer([log.data(each) for each in plan.take_all()], now_s=now_s)
        if is_lost:  # the client connects again, with all that it wants
            self.epoch = FULL
            return
        if self.epoch == FULL:
            assert sorted(partitions_in(response)) == sorted(wanted)
        take(self.seen, response, wanted)
        self.session_id = response.session_id
        self.epoch = self.epoch + 1 if response.session_id else FULL


PARTITIONS = [A, B, C, ("users", 1)]
_partitions = st.sampled_from(PARTITIONS)
_steps = st.one_of(
    st.tuples(st.just("append"), _partitions),
    st.tuples(st.just("fail"), _partitions),
    st.tuples(st.just("recover"), _partitions),
    st.tuples(st.just("assign"), _partitions),
    st.tuples(st.just("revoke"), _partitions),
    st.tuples(st.just("fetch"), st.booleans()),
    st.tuples(st.just("wait"), st.booleans()),
)


@given(steps=st.lists(_steps, max_size=60), sessions_max=st.integers(0, 2), partitions_max=st.integers(1, 8))
def test_a_client_with_a_session_learns_what_a_client_without_one_learns(
    steps: list[tuple[str, TopicPartitionName | bool]], sessions_max: int, partitions_max: int
) -> None:
    sessions = sessions_of(sessions_max=sessions_max, partitions_max=partitions_max)
    log, plain = Log(), dict[TopicPartitionName, Seen]()
    clients = [SessionClient(ALICE), SessionClient(BOB), SessionClient(ALICE)]
    now_s = 0.0
    for act, of in steps:
        if act == "append" and isinstance(of, tuple):
            log.ends[of] = log.ends.get(of, 0) + 1
        elif act == "fail" and isinstance(of, tuple):
            log.codes[of] = ErrorCode.KAFKA_STORAGE_ERROR
        elif act == "recover" and isinstance(of, tuple):
            log.codes.pop(of, None)
        elif act == "assign" and isinstance(of, tuple):
            for seen in (plain, *(client.seen for client in clients)):
                seen.setdefault(of, Seen())
        elif act == "revoke" and isinstance(of, tuple):
            for seen in (plain, *(client.seen for client in clients)):
                seen.pop(of, None)
        elif act == "wait":
            now_s += EVICTION_S + 1
        elif plain:
            if of:  # the answers to the first client are lost
                clients[0].fetch(sessions, log, now_s=now_s, is_lost=True)
            asked = request(0, LAST, {partition: seen.next_offset for partition, seen in plain.items()})
            take(plain, answer_from(log, begin(sessions, asked)), plain)
            for client in clients:
                client.fetch(sessions, log, now_s=now_s, is_lost=False)
                assert client.seen == plain
        assert sessions.figures.sessions <= sessions_max
        assert sessions.figures.partitions <= partitions_max


def answer_from(log: Log, plan: FetchPlan) -> FetchResponse:
    return plan.answer([log.data(each) for each in plan.take_all()], now_s=0.0)
