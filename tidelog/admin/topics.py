"""Topics as a client manages them: `log.topics`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask

from gateway.proto import admin_pb2, log_pb2
from metadata.errors import InvalidArgument
from tidelog.transport.connection import Connection, Stubs
from tidelog.transport.descriptions import TopicInfo, topic_info

PAGE_SIZE = 1_000
DEFAULT_PARTITIONS = 6


class Topics:
    """Every change takes `validate_only`: the broker checks it, answers what would be, and changes nothing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self,
        name: str,
        *,
        partitions: int = DEFAULT_PARTITIONS,
        settings: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicInfo:
        """Raises AlreadyExists, InvalidName, InvalidArgument. `settings` by Kafka's names, such as retention.ms."""
        topic = admin_pb2.Topic(name=name, partition_count=_int32(partitions, "partitions"), settings=_texts(settings or {}))
        request = admin_pb2.CreateTopicRequest(topic=topic, validate_only=validate_only)
        return await self._change("CreateTopic", request)

    async def list(self, *, from_store: bool = False, refuses_outdated: bool = False) -> list[TopicInfo]:
        """Lists all topics by name, without the offsets of their partitions.

        `from_store`: also topics that were created through another broker a moment ago. The broker reads the metadata store first.
        If it can't do so in time, it lists what it has heard of, or raises Unavailable where `refuses_outdated`.
        """
        found: list[TopicInfo] = []
        page_token = ""
        while True:
            request = admin_pb2.ListTopicsRequest(
                page_size=PAGE_SIZE, page_token=page_token, fresh=from_store, refuse_outdated=from_store and refuses_outdated
            )
            page: Any = await self._connection.call(partial(_list_page, request), writes=False)
            found.extend(topic_info(topic) for topic in page.topics)
            page_token = page.next_page_token
            if not page_token:
                return found

    async def describe(self, name: str) -> TopicInfo:
        """Describes the topic with its partitions' leaders and offsets. Raises UnknownTopic."""
        request = admin_pb2.GetTopicRequest(name=name)
        topic: Any = await self._connection.call(lambda to, timeout_s: to.topics.GetTopic(request, timeout=timeout_s), writes=False)
        return topic_info(topic)

    async def alter(
        self,
        name: str,
        settings: Mapping[str, str | None] | None = None,
        *,
        partitions: int | None = None,
        validate_only: bool = False,
    ) -> TopicInfo:
        """Changes these settings and leaves the others; None goes back to the default. `partitions` as in `add_partitions`."""
        settings = settings or {}
        if not settings and partitions is None:
            raise InvalidArgument("nothing is to be changed", hint='Name settings: alter("orders", {"retention.ms": "86400000"})')
        topic = admin_pb2.Topic(name=name, settings=_texts({key: value for key, value in settings.items() if value is not None}))
        mask = FieldMask(paths=[f"settings.{key}" for key in settings])
        if partitions is not None:
            topic.partition_count = _int32(partitions, "partitions")
            mask.paths.append("partition_count")
        return await self._change(
            "UpdateTopic", admin_pb2.UpdateTopicRequest(topic=topic, update_mask=mask, validate_only=validate_only)
        )

    async def add_partitions(self, name: str, partitions: int, *, validate_only: bool = False) -> TopicInfo:
        """Grows the topic to `partitions` in all. Keys may go to other partitions from then on."""
        return await self.alter(name, partitions=partitions, validate_only=validate_only)

    async def delete(self, name: str, *, validate_only: bool = False) -> None:
        """Deletes the topic with its records. Raises UnknownTopic."""
        request = admin_pb2.DeleteTopicRequest(name=name, validate_only=validate_only)
        try:
            await self._connection.call(
                lambda to, timeout_s: to.topics.DeleteTopic(request, timeout=timeout_s), writes=not validate_only
            )
        finally:
            self._connection.forget_route(name)

    async def delete_records(self, name: str, partition: int, *, before: int, validate_only: bool = False) -> int:
        """Deletes the partition's records before this offset, or all that is committed for -1. Answers where the log starts now.

        Raises UnknownTopic, UnknownPartition, OutOfRange above the high watermark. It may be repeated.
        """
        request = log_pb2.DeleteRecordsRequest(
            topic=name,
            partition=_int32(partition, "partition"),
            before_offset=_int64(before, "before"),
            validate_only=validate_only,
        )
        answer: Any = await self._connection.call(
            lambda to, timeout_s: to.log.DeleteRecords(request, timeout=timeout_s), writes=not validate_only
        )
        log_start_offset: int = answer.log_start_offset
        return log_start_offset

    async def _change(self, method: str, request: Any) -> TopicInfo:
        try:
            answer: Any = await self._connection.call(
                lambda to, timeout_s: getattr(to.topics, method)(request, timeout=timeout_s), writes=not request.validate_only
            )
        finally:
            self._connection.forget_route(request.topic.name)
        return topic_info(answer)


def _list_page(request: admin_pb2.ListTopicsRequest, to: Stubs, timeout_s: float) -> Any:
    return to.topics.ListTopics(request, timeout=timeout_s)


def _int32(value: object, name: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31:
        return value
    raise InvalidArgument(f"{name} is {value!r}, which is not a number of partitions", hint="Use a whole number from 1 on.")


def _int64(value: object, name: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    raise InvalidArgument(f"{name} is {value!r}, which is no offset", hint="Use a whole number from 0 on, or -1 for all records.")


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(f"the setting {name!r} is {value!r}", hint='Settings are text: {"retention.ms": "86400000"}')
    return dict(settings)
