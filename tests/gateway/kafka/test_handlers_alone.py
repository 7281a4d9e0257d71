"""Handlers of Kafka's APIs without a broker: what they answer, and how much they do for it."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.access.authorization import AuthorizedCall, CallOrigin
from gateway.access.permissions import RequiredAccess
from gateway.access.quotas import Meter, PrincipalQuotas
from gateway.kafka.access.scram_users import KafkaScramUsers
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode
from gateway.kafka.producer_ids import KafkaProducerIds
from gateway.kafka.protocol.admin_messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeUserScramCredentialsRequest,
    UserName,
)
from gateway.kafka.protocol.client_messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InitProducerIdRequest,
    JoinGroupRequest,
    JoinGroupResponse,
)
from gateway.kafka.protocol.hot_messages import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from metadata.access.quota import Quota
from metadata.errors import NotAuthorized, OutcomeUnknown, Throttled, TidelogError, Unavailable
from tests.kit.gateway.kafka_client import KEYS
from tests.kit.gateway.kafka_codec import INSTALLED
from tests.kit.gateway.kafka_connection import connected, send
from tests.kit.gateway.kafka_listener_alone import TOPIC, OneTopicLog, requests_alone
from tests.kit.segments.batches import batch_of
from tests.simulation.virtual_loop import run as run_virtually


def call(version: int) -> KafkaCall:
    connection: Any = SimpleNamespace()
    return KafkaCall(connection, version, "tests", None)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("etcd is away"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (Throttled("too many"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (OutcomeUnknown("etcd did not answer"), ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_an_idempotent_producer_is_never_sent_to_a_coordinator(error: TidelogError, code: int) -> None:
    def fail() -> int:
        raise error

    broker: Any = SimpleNamespace(producer_ids=SimpleNamespace(next=fail))
    answer = run_virtually(KafkaProducerIds(broker).init_producer_id(call(4), InitProducerIdRequest(transactional_id=None)))
    assert answer.error_code == code


CALLER: Any = SimpleNamespace(
    principal="a", is_peer=False, check_counts=lambda: None, may=lambda *_: True, stale_error=lambda: None, expires_at_ms=0
)


class MeteredGuard:
    """A guard that permits everything, and meters by the quotas that a test gives it."""

    def __init__(self, quota: Quota) -> None:
        self._held = {quota.principal: quota}
        self._quotas = PrincipalQuotas(SimpleNamespace(quota=self._held.get), time.monotonic)
        self._changed: list[Callable[[], None]] = []
        self.cache = SimpleNamespace(subscribe=self._changed.append)

    def quota_changed(self, quota: Quota) -> None:
        self._held[quota.principal] = quota
        for changed in self._changed:
            changed()

    def call_of(self, caller: Any, needs: RequiredAccess, origin: CallOrigin) -> AuthorizedCall:
        return AuthorizedCall(caller, needs, origin, refusal=lambda *_: None)

    def check_counts(self, call: AuthorizedCall) -> None: ...

    def ended(self, call: AuthorizedCall, failure: str) -> None: ...

    def while_permitted(self, call: AuthorizedCall) -> Any:
        return nullcontext()

    def quota(self, call: AuthorizedCall) -> Meter | None:
        return self._quotas.meter(call.principal)

    def quota_of(self, caller: Any) -> Meter | None:
        return self._quotas.meter(caller.principal)


class _Name(str):
    """Counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        _Name.compared += 1
        return str.__eq__(self, other)


def test_describing_users_compares_each_name_a_few_times_only() -> None:
    async def no_users() -> list[Any]:
        return []

    broker: Any = SimpleNamespace(access=SimpleNamespace(scram_users=no_users), guard=None)
    users = [UserName(name=_Name(f"user-{number}")) for number in range(300)]
    request = DescribeUserScramCredentialsRequest(users=users)
    answer = run_virtually(KafkaScramUsers(broker).describe(call(0), request))
    assert len(answer.results) == 300
    assert _Name.compared < 10 * 300


# ── the listener ────────────────────────────────────────────────────────────────────────────────────────────────────────


def frame(api: str, version: int, message: Any) -> bytes:
    return INSTALLED.encode_request_frame(KEYS[api], message, version, 1)


def test_a_producer_with_acks_0_is_throttled_as_any_other() -> None:
    async def scenario() -> None:
        requests = requests_alone(OneTopicLog(), guard=MeteredGuard(Quota(principal="a", bytes_in_per_second=1)))
        connection, transport = connected(requests)
        connection.authenticated = CALLER
        data = PartitionProduceData(index=0, records=memoryview(batch_of(b"value")))
        topic = TopicProduceData(name=TOPIC.name, partition_data=[data])
        send(connection, frame("Produce", 9, ProduceRequest(acks=0, timeout_ms=1000, topic_data=[topic])))
        assert not transport.is_reading()
        await asyncio.sleep(0)
        assert not transport.is_ending
        transport.abort()
        await asyncio.sleep(0)

    run_virtually(scenario())


def test_a_heartbeat_does_not_wait_for_the_bytes_that_its_principal_has_fetched() -> None:
    async def fetched(call: KafkaCall, request: Any) -> Any:
        return FetchResponse(responses=[FetchableTopicResponse(topic="x" * 1_000)])

    async def scenario() -> None:
        guard = MeteredGuard(Quota(principal="a", bytes_out_per_second=10))
        requests = requests_alone(OneTopicLog(), {KEYS["Fetch"]: fetched}, guard=guard)
        reader, read_from = connected(requests)
        member, heard_from = connected(requests)
        reader.authenticated = member.authenticated = CALLER
        send(reader, frame("Fetch", 4, FetchRequest()))
        send(member, frame("Heartbeat", 4, HeartbeatRequest()))
        await asyncio.sleep(0.01)
        assert len(read_from.written) > 1_000
        assert not read_from.is_reading()
        assert heard_from.is_reading()
        _, heard = INSTALLED.decode_response(KEYS["Heartbeat"], bytes(heard_from.written[4:]), 4)
        assert heard.throttle_time_ms == 0
        guard.quota_changed(Quota(principal="b", bytes_out_per_second=10))
        await asyncio.sleep(0.01)
        assert not read_from.is_reading()
        guard.quota_changed(Quota(principal="a", bytes_out_per_second=1_000_000))
        await asyncio.sleep(0.01)
        assert read_from.is_reading()
        for transport in (read_from, heard_from):
            transport.abort()
        await asyncio.sleep(0)

    run_virtually(scenario())


class LateRights:
    """A client whose right the broker hears of only when it asks the metadata store; without `granted`, never."""

    def __init__(self, *, granted: bool) -> None:
        self.asked = 0
        self._granted = granted
        self._is_known = False
        self.answers = asyncio.Event()
        self.caller: Any = SimpleNamespace(
            **vars(CALLER) | {"may": lambda *_: self._is_known},
            view=SimpleNamespace(catch_up=self._catch_up),
            refusal=lambda *_: NotAuthorized("no right"),
            is_narrowed=False,
        )

    async def _catch_up(self, timeout_s: float, *, anonymous: bool) -> bool:
        self.asked += 1
        await self.answers.wait()
        self._is_known = self._granted
        return True


@pytest.mark.parametrize("granted", [True, False])
def test_a_produce_waits_for_a_right_that_the_broker_has_not_heard_of_and_keeps_its_place(granted: bool) -> None:
    async def scenario() -> None:
        log, rights = OneTopicLog(), LateRights(granted=granted)
        connection, transport = connected(requests_alone(log, guard=MeteredGuard(Quota(principal="b", bytes_in_per_second=1))))
        connection.authenticated = rights.caller
        frames = b""
        for value in (b"first", b"second"):
            data = PartitionProduceData(index=0, records=memoryview(batch_of(value)))
            topic = TopicProduceData(name=TOPIC.name, partition_data=[data])
            frames += frame("Produce", 9, ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]))
        send(connection, frames)
        await asyncio.sleep(0.01)
        assert (rights.asked, log.next_offset, transport.is_reading()) == (1, 0, False)
        rights.answers.set()
        await asyncio.sleep(0.01)
        assert transport.is_reading()
        assert log.next_offset == (2 if granted else 0)
        size = int.from_bytes(transport.written[:4])
        _, answer = INSTALLED.decode_response(KEYS["Produce"], bytes(transport.written[4 : 4 + size]), 9)
        [result] = answer.responses[0].partition_responses
        assert (result.error_code, result.base_offset) == (
            (ErrorCode.NONE, 0) if granted else (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)
        )
        transport.abort()
        await asyncio.sleep(0)

    run_virtually(scenario())


def test_a_produce_whose_connection_is_lost_while_it_waits_for_rights_writes_nothing() -> None:
    async def scenario() -> None:
        log, rights = OneTopicLog(), LateRights(granted=True)
        connection, transport = connected(requests_alone(log, guard=MeteredGuard(Quota(principal="b", bytes_in_per_second=1))))
        connection.authenticated = rights.caller
        data = PartitionProduceData(index=0, records=memoryview(batch_of(b"value" * 40_000)))
        topic = TopicProduceData(name=TOPIC.name, partition_data=[data])
        send(connection, frame("Produce", 9, ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])))
        await asyncio.sleep(0.01)
        assert rights.asked == 1
        transport.abort()
        rights.answers.set()
        await asyncio.sleep(0.01)
        assert (log.next_offset, log.budget.bytes_used) == (0, 0)

    run_virtually(scenario())


def test_a_heartbeat_waits_for_a_right_that_the_broker_has_not_heard_of() -> None:
    handled: list[str] = []

    async def heartbeat(call: KafkaCall, request: Any) -> Any:
        assert call.authorized is not None
        call.authorized.check("group", request.group_id)
        handled.append(request.group_id)
        return HeartbeatResponse()

    async def scenario() -> None:
        rights = LateRights(granted=True)
        requests = requests_alone(
            OneTopicLog(),
            {KEYS["Heartbeat"]: heartbeat},
            guard=MeteredGuard(Quota(principal="b", bytes_in_per_second=1)),
            at_once={KEYS["Heartbeat"]: lambda call, request: HeartbeatResponse(error_code=1)},
        )
        connection, transport = connected(requests)
        connection.authenticated = rights.caller
        send(connection, frame("Heartbeat", 4, HeartbeatRequest(group_id="g")))
        await asyncio.sleep(0.01)
        assert not transport.written
        rights.answers.set()
        await asyncio.sleep(0.01)
        assert handled == ["g"]
        transport.abort()
        await asyncio.sleep(0)

    run_virtually(scenario())


def test_an_answer_that_cannot_be_encoded_gives_its_memory_back() -> None:
    released: list[bool] = []

    async def too_long(call: KafkaCall, request: Any) -> Any:
        call.release = lambda: released.append(True)
        return FindCoordinatorResponse(error_message="x" * 40_000)

    async def scenario() -> None:
        connection, transport = connected(requests_alone(OneTopicLog(), {KEYS["FindCoordinator"]: too_long}))
        send(connection, frame("FindCoordinator", 3, FindCoordinatorRequest(key="group")))
        await asyncio.sleep(0.01)
        assert transport.is_ending
        assert released == [True]

    run_virtually(scenario())


def test_requests_that_wait_for_others_cost_little_more_than_their_bytes() -> None:
    names = 10_000
    data = frame("DescribeConfigs", 4, DescribeConfigsRequest(resources=[DescribeConfigsResource() for _ in range(names)]))
    assert len(data) < 64 << 10

    async def never(call: KafkaCall, request: Any) -> Any:
        await asyncio.Event().wait()

    async def scenario() -> int:
        connection, transport = connected(requests_alone(OneTopicLog(), {KEYS["Heartbeat"]: never}))
        send(connection, frame("Heartbeat", 4, HeartbeatRequest()))
        await asyncio.sleep(0)
        tracemalloc.start()
        try:
            for _ in range(20):
                send(connection, data)
                await asyncio.sleep(0)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            transport.abort()
            await asyncio.sleep(0.01)

    assert run_virtually(scenario()) < 2 * 20 * len(data) + (64 << 10)


def test_a_heartbeat_that_waits_for_nothing_is_answered_without_a_task() -> None:
    async def scenario() -> None:
        requests = requests_alone(OneTopicLog(), at_once={KEYS["Heartbeat"]: lambda call, request: HeartbeatResponse()})
        connection, transport = connected(requests)
        tasks = len(asyncio.all_tasks())
        send(connection, frame("Heartbeat", 4, HeartbeatRequest()))
        assert len(asyncio.all_tasks()) == tasks
        await asyncio.sleep(0)
        assert transport.written
        assert requests._traffic.calls == 1
        transport.abort()
        await asyncio.sleep(0)

    run_virtually(scenario())


def test_a_heartbeat_behind_a_request_that_waits_is_handled_after_it() -> None:
    handled: list[str] = []

    async def scenario() -> None:
        joined = asyncio.Event()

        async def join(call: KafkaCall, request: Any) -> Any:
            await joined.wait()
            handled.append("JoinGroup")
            return JoinGroupResponse()

        async def heartbeat(call: KafkaCall, request: Any) -> Any:
            handled.append("Heartbeat")
            return HeartbeatResponse()

        def heartbeat_at_once(call: KafkaCall, request: Any) -> Any:
            handled.append("Heartbeat at once")
            return HeartbeatResponse()

        requests = requests_alone(
            OneTopicLog(),
            {KEYS["JoinGroup"]: join, KEYS["Heartbeat"]: heartbeat},
            at_once={KEYS["Heartbeat"]: heartbeat_at_once},
        )
        connection, transport = connected(requests)
        send(connection, frame("JoinGroup", 5, JoinGroupRequest()) + frame("Heartbeat", 4, HeartbeatRequest()))
        await asyncio.sleep(0.01)
        assert handled == []
        joined.set()
        await asyncio.sleep(0.01)
        assert handled == ["JoinGroup", "Heartbeat"]
        transport.abort()
        await asyncio.sleep(0)

    run_virtually(scenario())


def test_a_heartbeat_that_has_to_wait_is_handled_in_its_turn() -> None:
    handled: list[str] = []

    async def heartbeat(call: KafkaCall, request: Any) -> Any:
        handled.append("Heartbeat")
        return HeartbeatResponse()

    async def scenario() -> None:
        requests = requests_alone(
            OneTopicLog(), {KEYS["Heartbeat"]: heartbeat}, at_once={KEYS["Heartbeat"]: lambda call, request: None}
        )
        connection, transport = connected(requests)
        send(connection, frame("Heartbeat", 4, HeartbeatRequest()))
        await asyncio.sleep(0.01)
        assert handled == ["Heartbeat"]
        assert requests._traffic.calls == 1
        transport.abort()
        await asyncio.sleep(0)

    run_virtually(scenario())


def test_a_fault_of_a_handler_that_answers_at_once_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    def faulty(call: KafkaCall, request: Any) -> Any:
        raise ZeroDivisionError

    async def scenario() -> None:
        connection, transport = connected(requests_alone(OneTopicLog(), at_once={KEYS["Heartbeat"]: faulty}))
        send(connection, frame("Heartbeat", 4, HeartbeatRequest()))
        assert transport.is_ending
        await asyncio.sleep(0)

    run_virtually(scenario())
    assert "request failed" in caplog.text
