"""Fetch sessions with a watch: they answer what a session without one answers, which looks up all partitions each time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kafka.errors import ErrorCode
from gateway.kafka.fetch_sessions import AskedPartition, FetchPlan, FetchSessions, Owner, SessionKey, SessionWatch, key_of
from gateway.kafka.protocol.hot_messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from metadata.model import Partition, TopicId, TopicPartition
from segments.read.reader_notifier import ReaderNotifier

OWNER: Final = Owner("kafka", "")
TOPIC: Final = "orders"
NUMBERS: Final = range(5)
# Records that one answer may hold, so that partitions are left out of it.
RECORDS_MAX: Final = 3


class Log:
    """Partitions of one broker, which tells their news."""

    def __init__(self) -> None:
        self.notifier = ReaderNotifier()
        self.ends = dict.fromkeys(NUMBERS, 0)
        self.starts = dict.fromkeys(NUMBERS, 0)
        self.failing: set[int] = set()
        # How often the topic of each partition was created again: the partition has another id then.
        self.lives = dict.fromkeys(NUMBERS, 0)

    def partition(self, number: int) -> TopicPartition:
        return TopicPartition(TopicId(f"{self.lives[number]}-{number}"), Partition(number))

    def changed(self, number: int) -> None:
        self.notifier.wake(self.partition(number))

    def create_again(self, number: int) -> None:
        before = self.partition(number)
        self.lives[number] += 1
        self.ends[number] = self.starts[number] = 0
        self.notifier.wake(before)

    def look_up(self, asked: Sequence[AskedPartition]) -> tuple[list[PartitionData], list[bool]]:
        """Returns the answers in the order of reading, and which partitions are at their end."""
        found, at_end, left = [], [], RECORDS_MAX
        for each in asked:
            number, offset = each.request.partition, each.request.fetch_offset
            if number in self.failing or not self.starts[number] <= offset <= self.ends[number]:
                found.append(PartitionData(partition_index=number, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1))
                at_end.append(False)
                continue
            records = [b"%d" % at for at in range(offset, self.ends[number])][: max(0, left)]
            left -= len(records)
            found.append(
                PartitionData(
                    partition_index=number,
                    high_watermark=self.ends[number],
                    log_start_offset=self.starts[number],
                    records=records,
                )
            )
            at_end.append(offset == self.ends[number])
        return found, at_end


class Client:
    """A client with a session. What it asks for depends on the test alone, so two of them ask for the same."""

    def __init__(self, log: Log, *, watches: bool) -> None:
        ids = itertools.count(1)
        self.log = log
        self.sessions = FetchSessions(lambda: next(ids))
        self.watches = watches
        self.session_id, self.epoch = 0, 0
        self.lookups = 0

    def open(self, offsets: dict[int, int]) -> FetchResponse:
        response = self.fetch(self.begin(0, offsets))
        self.session_id, self.epoch = response.session_id, 1
        return response

    def begin(self, epoch: int, offsets: dict[int, int], forgotten: Sequence[int] = ()) -> FetchPlan:
        asked = [FetchPartition(partition=number, fetch_offset=offset) for number, offset in offsets.items()]
        request = FetchRequest(
            session_id=self.session_id,
            session_epoch=epoch,
            topics=[FetchTopic(topic=TOPIC, partitions=asked)] if asked else (),
            forgotten_topics_data=[ForgottenTopic(topic=TOPIC, partitions=forgotten)] if forgotten else (),
        )
        plan = self.sessions.begin(request, owner=OWNER, by_id=False, now_s=0.0)
        assert isinstance(plan, FetchPlan), plan
        if self.watches and plan.session is not None and plan.session.watch is None:
            plan.session.replace_watch(SessionWatch(self.log.notifier, plan.session.partitions))
        return plan

    def take(self, plan: FetchPlan) -> Sequence[AskedPartition]:
        watch = plan.session.watch if plan.session is not None else None
        if watch is None:
            return plan.take_all()
        taken = plan.take_due(watch)
        for each in taken:
            watch.follow(key_of(each), self.log.partition(each.request.partition))
        return taken

    def fetch(self, plan: FetchPlan) -> FetchResponse:
        asked = self.take(plan)
        self.lookups += len(asked)
        data, at_end = self.log.look_up(asked)
        return plan.answer(data, now_s=0.0, at_rest=at_end)


def said(response: FetchResponse) -> list[object]:
    """Returns all that the answers of this test say, in their order."""
    partitions = [each for topic in response.responses for each in topic.partitions]
    return [
        response.session_id,
        response.error_code,
        *((each.partition_index, each.error_code, each.high_watermark, each.log_start_offset, each.records) for each in partitions),
    ]


_numbers = st.sampled_from(NUMBERS)
_steps = st.one_of(
    st.tuples(st.sampled_from(["append", "fail", "recover", "trim", "create again", "ask", "forget", "again"]), _numbers),
    st.tuples(st.sampled_from(["fetch", "lost", "woken", "everything"]), st.just(0)),
)


def change(log: Log, act: str, number: int) -> None:
    if act == "append":
        log.ends[number] += 1
    elif act == "fail":
        log.failing.add(number)
    elif act == "recover":
        log.failing.discard(number)
    elif act == "trim":
        log.starts[number] = log.ends[number]
    log.changed(number)


@given(steps=st.lists(_steps, max_size=80))
def test_a_session_that_looks_up_what_has_news_answers_as_one_that_looks_up_everything(steps: list[tuple[str, int]]) -> None:
    log = Log()
    clients = [Client(log, watches=False), Client(log, watches=True)]
    offsets = dict.fromkeys(NUMBERS, 0)
    wanted: dict[int, int] = {}
    forgotten: set[int] = set()
    full, watching = (client.open(offsets) for client in clients)
    assert said(full) == said(watching)
    for act, number in steps:
        if act in ("append", "fail", "recover", "trim"):
            change(log, act, number)
        elif act == "create again":
            log.create_again(number)
        elif act == "ask":
            wanted[number] = log.ends[number]
            forgotten.discard(number)
        elif act == "again":
            wanted[number] = log.starts[number]
            forgotten.discard(number)
        elif act == "forget" and len(forgotten) < len(NUMBERS) - 1:
            wanted.pop(number, None)
            forgotten.add(number)
        elif act in ("fetch", "lost", "woken", "everything"):
            plans = [client.begin(client.epoch, wanted, tuple(forgotten)) for client in clients]
            wanted = {}
            if act == "lost":  # looked up, and not answered: the client repeats its request
                for client, plan in zip(clients, plans, strict=True):
                    log.look_up(client.take(plan))
                    plan.abandon()
                continue
            if act == "woken":  # looked up, waited, and woken by a commit
                for client, plan in zip(clients, plans, strict=True):
                    log.look_up(client.take(plan))
                change(log, "append", min(set(NUMBERS) - forgotten))
            if act == "everything":
                for plan in plans:
                    plan.take_all()
            full, watching = (client.fetch(plan) for client, plan in zip(clients, plans, strict=True))
            assert said(full) == said(watching)
            for client in clients:
                client.epoch += 1
    assert clients[1].lookups <= clients[0].lookups
    assert len(log.notifier) <= len(NUMBERS)
    clients[1].begin(-1, {})
    assert len(log.notifier) == 0, "a session that was closed watches nothing"


def keys_due(client: Client) -> list[SessionKey]:
    plan = client.begin(client.epoch, {})
    client.epoch += 1
    keys = [key_of(each) for each in client.take(plan)]
    data, at_end = client.log.look_up(plan.partitions)
    plan.answer(data, now_s=0.0, at_rest=at_end)
    return keys


def opened() -> tuple[Log, Client]:
    log = Log()
    client = Client(log, watches=True)
    client.open(dict.fromkeys(NUMBERS, 0))
    assert len(keys_due(client)) == len(NUMBERS), "the first look of the watch"
    assert keys_due(client) == []
    return log, client


def test_only_partitions_with_news_are_looked_up_and_until_their_records_are_read() -> None:
    log, client = opened()
    change(log, "append", 3)
    assert keys_due(client) == [(TOPIC, 3)]
    assert keys_due(client) == [(TOPIC, 3)], "the client has not asked for the next offset"
    client.fetch(client.begin(client.epoch, {3: 1}))
    client.epoch += 1
    assert keys_due(client) == []


def test_partitions_that_a_full_answer_left_out_are_looked_up_first_the_next_time() -> None:
    log, client = opened()
    for number in (0, 2, 4):
        for _ in range(RECORDS_MAX):
            change(log, "append", number)
    order = []
    for _ in range(3):
        response = client.fetch(client.begin(client.epoch, {}))
        client.epoch += 1
        order.append([each.partition_index for each in response.responses[0].partitions if each.records])
    assert order == [[0], [2], [4]]


def test_a_partition_is_looked_up_when_the_client_adds_it_or_asks_for_another_offset() -> None:
    log, client = opened()
    change(log, "append", 3)
    client.fetch(client.begin(client.epoch, {3: 1}, [4]))
    client.epoch += 1
    assert keys_due(client) == []
    response = client.fetch(client.begin(client.epoch, {3: 0, 4: 0}))
    client.epoch += 1
    assert [(each.partition_index, len(each.records or ())) for each in response.responses[0].partitions] == [(3, 1), (4, 0)]


def test_news_between_a_look_up_and_its_answer_are_looked_up_the_next_time() -> None:
    log, client = opened()
    plan = client.begin(client.epoch, {1: 0})
    data, at_end = log.look_up(client.take(plan))
    change(log, "append", 1)
    plan.answer(data, now_s=0.0, at_rest=at_end)
    client.epoch += 1
    assert keys_due(client) == [(TOPIC, 1)]


def test_a_partition_of_a_topic_that_was_created_again_is_watched_by_its_new_id() -> None:
    log, client = opened()
    log.create_again(2)
    assert keys_due(client) == [(TOPIC, 2)]
    assert keys_due(client) == []
    change(log, "append", 2)
    assert keys_due(client) == [(TOPIC, 2)]
    assert len(log.notifier) == len(NUMBERS)


@pytest.mark.parametrize("rights", [("alice", 2), ("bob", 1)])
def test_a_watch_is_good_for_one_state_of_the_rights_and_one_session_of_the_broker(rights: tuple[object, ...]) -> None:
    notifier = ReaderNotifier()
    watch = SessionWatch(notifier, [(TOPIC, 0)], stamp=("alice", 1))
    assert watch.is_good(notifier, ("alice", 1), partitions=1)
    assert not watch.is_good(notifier, rights, partitions=1)
    assert not watch.is_good(ReaderNotifier(), ("alice", 1), partitions=1)
    watch.close()
    assert not watch.is_good(notifier, ("alice", 1), partitions=1)
