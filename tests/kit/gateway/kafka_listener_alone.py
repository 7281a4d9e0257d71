"""The requests of a Kafka listener without a broker: handlers that answer nothing for all APIs, and a log of one topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from gateway.access.permissions import KAFKA_CALLS, RequiredAccess
from gateway.kafka.access.authentication import KafkaAuthentication
from gateway.kafka.api_versions import API_VERSIONS
from gateway.kafka.call import Handler, KafkaCall
from gateway.kafka.produce import PRODUCE
from gateway.kafka.protocol.apis import APIS
from gateway.kafka.requests import KafkaRequests
from gateway.settings import GatewaySettings
from gateway.telemetry.traffic import ListenerTraffic
from metadata.errors import NotLeader, TidelogError, UnknownTopic
from metadata.model import LeaderEpoch, Offset, TopicId
from metadata.topics.settings import TopicSettings
from metadata.topics.topic import Topic
from segments.byte_budget import ByteBudget
from segments.log.append_result import PendingAppend
from segments.partition.partition_log import Appended
from tests.kit.gateway.kafka_codec import DEFINITIONS, INSTALLED

REQUEST_BYTES_MAX: Final = 2 << 20
LOG_BYTES_MAX: Final = 4 << 20
TOPIC: Final = Topic(id=TopicId("0123456789abcdef" * 2), name="orders", partition_count=2, settings={}, created_at_ms=0)


class OneTopicLog:
    """Commits what is appended to partition 0 of the topic, and does not lead partition 1."""

    def __init__(self) -> None:
        self.budget = ByteBudget(LOG_BYTES_MAX)
        self.settings = SimpleNamespace(decompressed_bytes_max=REQUEST_BYTES_MAX)
        self.admit = self.budget.admit
        self.admit_now = self.budget.admit_now
        self.next_offset = 0

    def append(self, partition: Any, batch: Any, header: Any, admission: Any, **terms: Any) -> PendingAppend:
        if partition.partition != 0:
            raise NotLeader("another broker leads partition 1")
        first = self.next_offset
        self.next_offset += header.last_offset_delta + 1
        return PendingAppend(Appended(Offset(first), Offset(self.next_offset - 1), LeaderEpoch(0)), None)


class _OneTopic:
    def get(self, name: str) -> Topic:
        if name != TOPIC.name:
            raise UnknownTopic("there is no such topic")
        return TOPIC

    def by_id(self, topic_id: TopicId) -> Topic:
        if topic_id != TOPIC.id:
            raise UnknownTopic("there is no such topic")
        return TOPIC

    def settings(self, topic_id: TopicId) -> TopicSettings:
        return TopicSettings()


def requests_alone(
    log: OneTopicLog,
    handlers: dict[int, Callable[[KafkaCall, Any], Awaitable[Any]]] | None = None,
    *,
    guard: Any = None,
    at_once: dict[int, Callable[[KafkaCall, Any], Any]] | None = None,
) -> KafkaRequests:
    """Returns the requests of a listener. `handlers`, by API key, take the place of those that answer nothing.

    `at_once` are the handlers of those APIs that may answer without a wait.
    """
    broker: Any = SimpleNamespace(
        settings=replace(GatewaySettings(), request_bytes_max=REQUEST_BYTES_MAX),
        guard=guard,
        metrics=SimpleNamespace(traffic=SimpleNamespace(kafka=ListenerTraffic())),
        cluster_log=log,
        local_log=log,
        topic_cache=_OneTopic(),
        bucket_trouble=None,
    )
    leaders: Any = SimpleNamespace(leader=lambda *_: None, log_start_offset=lambda _: 0)
    given = handlers or {}
    served = {
        key: Handler(
            api.min_version,
            api.max_version,
            KAFKA_CALLS.get(api.name, RequiredAccess()),
            given.get(key) or _answers_nothing(key),
            (at_once or {}).get(key),
        )
        for key, api in APIS.items()
        if key not in (PRODUCE, API_VERSIONS)
    }
    return KafkaRequests(broker, leaders, served, KafkaAuthentication(None))


def _answers_nothing(key: int) -> Callable[[KafkaCall, Any], Awaitable[Any]]:
    response = INSTALLED.class_of(DEFINITIONS[key].response.root)

    async def handle(call: KafkaCall, request: Any) -> Any:
        return response()

    return handle


def refused_by(error: TidelogError) -> Callable[[KafkaCall, Any], Awaitable[Any]]:
    """Returns a handler that raises the error."""

    async def handle(call: KafkaCall, request: Any) -> Any:
        raise error

    return handle
