"""Answers DeleteRecords: raises log start offsets. The leader of a partition answers; on a listener that forwards, any broker does.

Kafka Streams calls it to delete the records that it has read from its repartition topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.api import BrokerApi
from gateway.concurrency.bounded_map import map_bounded
from gateway.kafka.admin.changes import change_each
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import delete_records_code
from gateway.kafka.leaders import KafkaLeaders
from gateway.kafka.protocol.admin_messages import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from gateway.topics.names import NamedPartition, resolve_partitions
from metadata.errors import NotLeader, OutOfRange, TidelogError
from metadata.model import TopicPartition

# Stands for the high watermark in a request.
HIGH_WATERMARK: Final = -1
# Stands for the log start in an answer with an error.
NO_LOW_WATERMARK: Final = -1
# Partitions of one topic whose log start is raised at the same time.
RAISED_MAX: Final = 16


class _SomeFailed(TidelogError):
    """Some partitions of a topic have errors. It carries the answers of all; the audit log has the code of the first error."""

    def __init__(self, first: TidelogError, results: Sequence[DeleteRecordsPartitionResult]) -> None:
        super().__init__(first.message, hint=first.hint)
        self.code = first.code  # type: ignore[misc]  # a class variable of errors, which this one takes from another error
        self.results = results


class _Raised(NamedTuple):
    result: DeleteRecordsPartitionResult
    error: TidelogError | None


class KafkaDeleteRecords:
    """Answers DeleteRecords for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi, leaders: KafkaLeaders) -> None:
        self._broker = broker
        self._leaders = leaders

    async def delete_records(self, call: KafkaCall, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Deletes the records before an offset of each partition. Answers with their log starts."""

        async def raise_starts(topic: DeleteRecordsTopic) -> Sequence[DeleteRecordsPartitionResult]:
            return await self._raise_starts(call, topic)

        found = await change_each(self._broker.guard, call, request.topics, raise_starts, timeout_ms=request.timeout_ms)
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(name=topic.name, partitions=_results(topic, results))
                for topic, results in zip(request.topics, found, strict=True)
            ]
        )

    async def _raise_starts(self, call: KafkaCall, topic: DeleteRecordsTopic) -> Sequence[DeleteRecordsPartitionResult]:
        """Raises the log starts of one topic. Raises _SomeFailed if a partition has an error."""
        names = [NamedPartition(topic.name, each.partition_index) for each in topic.partitions]
        resolved = await resolve_partitions(self._broker, names)
        asked = list(zip(topic.partitions, resolved, strict=True))
        found = await map_bounded(lambda each: self._raised(call, *each), asked, at_once=RAISED_MAX)
        results = [each.result for each in found]
        first = next((each.error for each in found if each.error is not None), None)
        if first is not None:
            raise _SomeFailed(first, results)
        return results

    async def _raised(self, call: KafkaCall, asked: DeleteRecordsPartition, at: TopicPartition | TidelogError) -> _Raised:
        try:
            if isinstance(at, TidelogError):
                raise at
            if not self._leaders.is_served_here(at, call.connection.listener):
                raise NotLeader(f"another broker leads {at}")
            if asked.offset < HIGH_WATERMARK:
                raise OutOfRange(f"{asked.offset} is no offset", hint="Use -1 for all that is committed.")
            low_watermark = await self._broker.cluster_log.delete_records(at, asked.offset)
        except TidelogError as error:
            return _Raised(_failed(asked, error), error.with_traceback(None))
        return _Raised(DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=low_watermark), None)


def _results(
    topic: DeleteRecordsTopic, found: Sequence[DeleteRecordsPartitionResult] | TidelogError
) -> Sequence[DeleteRecordsPartitionResult]:
    if isinstance(found, _SomeFailed):
        return found.results
    if isinstance(found, TidelogError):
        return [_failed(each, found) for each in topic.partitions]
    return found


def _failed(asked: DeleteRecordsPartition, error: TidelogError) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=NO_LOW_WATERMARK, error_code=delete_records_code(error)
    )
