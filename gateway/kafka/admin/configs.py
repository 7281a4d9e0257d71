"""Answers DescribeConfigs, ListConfigResources, AlterConfigs and IncrementalAlterConfigs for topics and brokers.

    topic    its settings: described, and altered
    broker   its settings, by Kafka's names: described. A broker reads them when it starts, so they are never altered here

AlterConfigs resets every config that it does not name to its default, as in Kafka. IncrementalAlterConfigs changes only the configs
that it names.

An answer of DescribeConfigs may describe thousands of topics. It takes memory of the same budget as answers to Fetch, as it grows,
and leaves half of the budget to others: further topics are answered with THROTTLING_QUOTA_EXCEEDED. Each resource is encoded in a
turn of the event loop of its own.

Invariant: an error of one resource stands in its place, and refuses no other.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from gateway.access.authorization import check_cluster, check_topic
from gateway.api import BrokerApi
from gateway.concurrency.bounded_map import map_bounded
from gateway.concurrency.offload import OnePerLoopTurn
from gateway.kafka.admin.changes import change_each
from gateway.kafka.admin.config_entries import TYPES, ConfigEntry, broker_configs, topic_configs
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import KafkaRejected, UnsupportedResourceType, admin_code, error_text
from gateway.kafka.listener_config import ListenerConfig, Route
from gateway.kafka.protocol.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterConfigsResource,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListConfigResourcesResult,
    encode_describe_configs_result,
)
from gateway.records.response_budget import BYTES_LEAST, ResponseBudget
from gateway.topics.describe import catch_up_with_topics, topic_in_view
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import InvalidArgument, Throttled, TidelogError
from metadata.shown_url import shown_url
from metadata.topics.settings import ListChange, SettingChange, list_elements, setting_definition

# Resources of one request that are described at the same time.
DESCRIBED_MAX: Final = 16
# An answer with as many resources waits for no memory: it is some 100 KB at most.
UNRESERVED_MAX: Final = 16


class ResourceType(enum.IntEnum):
    """Kafka's numbers of the resources that may have configs. Only topics and brokers have some here."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(enum.IntEnum):
    """Kafka's numbers of the operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class _NamedConfig(Protocol):
    @property
    def name(self) -> str: ...


class _Resource(Protocol):
    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


_AnyResource = TypeVar("_AnyResource", bound=_Resource)


class KafkaConfigs:
    """Describes and alters configs for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi, listeners: Sequence[ListenerConfig], room: ResponseBudget) -> None:
        """`room` is the memory for answers that clients have not received."""
        self._broker = broker
        self._listeners = listeners
        self._room = room
        self._encodings = OnePerLoopTurn()

    # ── describe ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def describe(self, call: KafkaCall, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        """Answers with the configs of each resource: those that are named, or all.

        A resource that is named twice, with the same configs, is described once.
        """
        resources = list({_key_of(each): each for each in request.resources}.values())
        reservation = self._room.reserve()
        call.release = lambda: reservation.keep(0)
        full: Throttled | None = None
        bytes_encoded = 0
        is_long = len(resources) > UNRESERVED_MAX
        if is_long:
            try:
                await reservation.ask(BYTES_LEAST, timeout_s=0)
            except Throttled as error:
                full = error

        has_caught_up = False
        if full is None and any(each.resource_type == ResourceType.TOPIC for each in resources):
            has_caught_up = await catch_up_with_topics(self._broker)

        async def describe(resource: DescribeConfigsResource) -> bytes:
            nonlocal bytes_encoded, full
            answer = DescribeConfigsResult(
                error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            entries = full or self._entries_or_error(call, resource, has_caught_up=has_caught_up)
            await self._encodings.take()
            if isinstance(entries, TidelogError):
                answer.error_code, answer.error_message = admin_code(entries), error_text(entries)
            else:
                names = frozenset(resource.configuration_keys or ())
                answer.configs = [_described(entry, request) for entry in entries if not names or entry.name in names]
            encoded = encode_describe_configs_result(answer, call.version)
            bytes_encoded += len(encoded)
            if bytes_encoded > reservation.bytes_held:
                reservation.keep(bytes_encoded)
            if is_long and full is None and self._room.is_half_used:
                full = Throttled(
                    "answers that clients have not received take half of the memory for them",
                    hint="Ask for fewer topics at once.",
                )
            return encoded

        results = await map_bounded(describe, resources, at_once=DESCRIBED_MAX)
        reservation.keep(bytes_encoded)
        return DescribeConfigsResponse(results=results)

    def _entries_or_error(
        self, call: KafkaCall, resource: DescribeConfigsResource, *, has_caught_up: bool
    ) -> list[ConfigEntry] | TidelogError:
        try:
            return self._entries(call, resource, has_caught_up=has_caught_up)
        except TidelogError as error:
            return error.with_traceback(None)

    def _entries(self, call: KafkaCall, resource: DescribeConfigsResource, *, has_caught_up: bool) -> list[ConfigEntry]:
        if resource.resource_type == ResourceType.TOPIC:
            topic = topic_in_view(self._broker, resource.resource_name, has_caught_up=has_caught_up)
            return topic_configs(topic.settings, message_bytes_max=self._broker.settings.message_bytes_max)
        if resource.resource_type == ResourceType.BROKER:
            check_cluster()
            if not resource.resource_name:
                return []  # the defaults that all brokers receive at run time; there are none
            return broker_configs(
                self._described_broker(call, resource.resource_name),
                self._broker.settings,
                self._broker.group_settings,
                self._listeners,
                bucket_url=shown_url(self._broker.bucket_url),
            )
        raise _unsupported(resource)

    def _described_broker(self, call: KafkaCall, number: str) -> BrokerRegistration:
        """Returns this broker; on a listener that forwards any other, since a client can't choose which one it reaches."""
        forwards = call.connection.listener.route is Route.FORWARD
        for registration in self._broker.registrations():
            if str(registration.node_id) == number and (forwards or registration.broker_id == self._broker.broker_id):
                return registration
        raise KafkaRejected(
            f"this broker is not number {number[:20]}", hint="Ask that broker itself, or name none for what all brokers have."
        )

    # ── list ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_resources(self, call: KafkaCall, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
        """Answers with the resources of the types that are named, or of all types.

        Version 0 lists the subscriptions of client metrics alone. There are none, and groups have no configs of their own.
        """
        try:
            check_cluster()
            types = _resource_types(request.resource_types, call.version)
        except TidelogError as error:
            return ListConfigResourcesResponse(error_code=admin_code(error))
        names: dict[int, list[str]] = {
            ResourceType.TOPIC: sorted(topic.name for topic in self._broker.topic_cache.topics()),
            ResourceType.BROKER: [str(number) for number in sorted(each.node_id for each in self._broker.registrations())],
        }
        return ListConfigResourcesResponse(
            config_resources=[
                ListConfigResourcesResult(resource_name=name, resource_type=kind) for kind in types for name in names.get(kind, ())
            ]
        )

    # ── alter ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def alter(self, call: KafkaCall, request: AlterConfigsRequest) -> AlterConfigsResponse:
        """Replaces the configs of topics; configs that are not named get their defaults."""
        counts = _counts(request.resources)

        async def replace(resource: AlterConfigsRequestAlterConfigsResource) -> None:
            self._check_altered(resource, counts)
            _check_once(resource.configs)
            settings: dict[str, SettingChange] = {each.name: _value(each.name, each.value) for each in resource.configs}
            await self._broker.alter_topic(
                resource.resource_name, settings=settings, replace_settings=True, validate_only=request.validate_only
            )

        asked = _distinct(request.resources)
        found = await change_each(self._broker.guard, call, asked, replace, validate_only=request.validate_only)
        return AlterConfigsResponse(
            responses=[
                AlterConfigsResponseAlterConfigsResourceResponse(
                    error_code=admin_code(error) if error is not None else 0,
                    error_message=error_text(error) if error is not None else None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource, error in zip(asked, found, strict=True)
            ]
        )

    async def alter_incrementally(
        self, call: KafkaCall, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        """Changes the configs of topics that are named."""
        counts = _counts(request.resources)

        async def change(resource: IncrementalAlterConfigsRequestAlterConfigsResource) -> None:
            self._check_altered(resource, counts)
            _check_once(resource.configs)
            settings = {each.name: _change(each) for each in resource.configs}
            await self._broker.alter_topic(resource.resource_name, settings=settings, validate_only=request.validate_only)

        asked = _distinct(request.resources)
        found = await change_each(self._broker.guard, call, asked, change, validate_only=request.validate_only)
        return IncrementalAlterConfigsResponse(
            responses=[
                IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                    error_code=admin_code(error) if error is not None else 0,
                    error_message=error_text(error) if error is not None else None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource, error in zip(asked, found, strict=True)
            ]
        )

    def _check_altered(self, resource: _Resource, counts: Counter[tuple[int, str]]) -> None:
        """Raises NotAuthorized, or KafkaRejected for a resource other than a topic, or one that the request names twice."""
        if resource.resource_type == ResourceType.BROKER:
            check_cluster()
            raise KafkaRejected(
                "the configs of brokers can't be altered while they run",
                hint="Set them where the broker starts: by flags, TIDELOG_* variables or its settings file.",
            )
        if resource.resource_type != ResourceType.TOPIC:
            raise _unsupported(resource)
        check_topic(resource.resource_name)
        if counts[resource.resource_type, resource.resource_name] > 1:
            raise KafkaRejected(f"the request names topic {resource.resource_name[:249]} more than once", hint="Name it once.")


def _resource_types(named: Sequence[int], version: int) -> Sequence[int]:
    """Returns the types to list. Raises UnsupportedResourceType."""
    if version == 0:
        return [ResourceType.CLIENT_METRICS]
    if unknown := set(named).difference(ResourceType):
        raise UnsupportedResourceType(f"there are no resources of type {min(unknown)}", hint="Use 2, 4, 8, 16 or 32.")
    return sorted(set(named)) or list(ResourceType)


def _unsupported(resource: _Resource) -> KafkaRejected:
    return KafkaRejected(
        f"resources of type {resource.resource_type} have no configs here", hint="Topics (2) and brokers (4) have."
    )


def _described(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        synonyms=[DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source) for each in entry.synonyms]
        if request.include_synonyms
        else (),
        config_type=TYPES[entry.type],
        documentation=entry.documentation if request.include_documentation else None,
    )


def _key_of(resource: DescribeConfigsResource) -> tuple[int, str, tuple[str, ...]]:
    return resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ())


def _counts(resources: Sequence[_Resource]) -> Counter[tuple[int, str]]:
    return Counter((each.resource_type, each.resource_name) for each in resources)


def _distinct(resources: Sequence[_AnyResource]) -> list[_AnyResource]:
    return list({(each.resource_type, each.resource_name): each for each in resources}.values())


def _check_once(configs: Sequence[_NamedConfig]) -> None:
    [(name, count), *_] = Counter(each.name for each in configs).most_common(1) or [("", 0)]
    if count > 1:
        raise KafkaRejected(f"the request names config {name[:60]} {count} times", hint="Name it once.")


def _value(name: str, value: str | None) -> str:
    if value is None:
        raise KafkaRejected(f"config {name[:60]} has no value", hint="Leave it out, or delete it, for the default.")
    return value


def _change(config: IncrementalAlterConfigsRequestAlterableConfig) -> SettingChange:
    if config.config_operation == ConfigOperation.DELETE:
        return None
    value = _value(config.name, config.value)
    if config.config_operation == ConfigOperation.SET:
        return value
    if config.config_operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise KafkaRejected(f"{config.config_operation} is no operation on configs", hint="Use 0 to 3.")
    if setting_definition(config.name).type != "list":
        raise InvalidArgument(f"{config.name} is no list", hint="Set it to another value.", setting=config.name)
    elements = list_elements(value)
    return ListChange(added=elements) if config.config_operation == ConfigOperation.APPEND else ListChange(removed=elements)
