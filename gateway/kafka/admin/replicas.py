"""Answers DescribeLogDirs, ElectLeaders and ListPartitionReassignments, Kafka's calls about the placement of partitions.

All records lie on the bucket, which stands for the one log directory of each broker. Its size is not known. Leaders are placed by
the cluster itself, so an election is never needed, and no replica ever moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.access.authorization import check_cluster
from gateway.api import BrokerApi
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode, KafkaRejected, admin_code, error_text
from gateway.kafka.protocol.admin_messages import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from gateway.telemetry.log_metrics import stored_bytes
from gateway.topics.names import NamedPartition, resolve_partitions
from metadata.errors import TidelogError
from metadata.shown_url import shown_url

# Types of elections: of the preferred replica, and of any.
PREFERRED, UNCLEAN = 0, 1
_NOT_NEEDED: Final = "Leader election not needed for topic partition."


class KafkaReplicas:
    """Answers calls about the placement of partitions for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    # ── the bucket ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def describe_log_dirs(self, call: KafkaCall, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        """Answers with the bytes on the bucket of each partition that this broker leads."""
        try:
            check_cluster()
        except TidelogError as error:
            return DescribeLogDirsResponse(error_code=admin_code(error))
        directory = DescribeLogDirsResult(log_dir=shown_url(self._broker.bucket_url))
        try:
            directory.topics = self._sizes(request)
        except TidelogError:  # between two sessions
            directory.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return DescribeLogDirsResponse(results=[directory])

    def _sizes(self, request: DescribeLogDirsRequest) -> Sequence[DescribeLogDirsTopic]:
        asked = None if request.topics is None else {(each.topic, number) for each in request.topics for number in each.partitions}
        led = self._broker.log.partitions.copy()
        topics: dict[str, list[DescribeLogDirsPartition]] = {}
        for at in sorted(led):
            try:
                name = self._broker.topic_cache.by_id(at.topic_id).name
            except TidelogError:  # it was deleted, and this broker is still releasing it
                continue
            if asked is None or (name, at.partition) in asked:
                size_bytes = sum(stored_bytes(led[at]))
                topics.setdefault(name, []).append(
                    DescribeLogDirsPartition(partition_index=at.partition, partition_size=size_bytes)
                )
        return [DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()]

    # ── leaders ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def elect_leaders(self, call: KafkaCall, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Answers that no election is needed, for each named partition; with none if the request means all."""
        named = request.topic_partitions or ()
        try:
            check_cluster()
            if request.election_type not in (PREFERRED, UNCLEAN):
                raise KafkaRejected(f"{request.election_type} is no type of election", hint="Use 0, preferred, or 1, unclean.")
        except TidelogError as error:
            refused = [[error] * len(topic.partitions) for topic in named]
            return ElectLeadersResponse(error_code=admin_code(error), replica_election_results=_elections(named, refused))
        return ElectLeadersResponse(
            replica_election_results=_elections(named, [await self._why_not_elected(topic) for topic in named])
        )

    async def _why_not_elected(self, topic: ElectLeadersRequestTopicPartitions) -> list[TidelogError | None]:
        """Returns the error of each partition; None if it exists."""
        found = await resolve_partitions(self._broker, [NamedPartition(topic.topic, number) for number in topic.partitions])
        return [each if isinstance(each, TidelogError) else None for each in found]

    async def list_partition_reassignments(
        self, call: KafkaCall, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """Answers that no replica is moved. kafka-topics asks for it whenever it describes topics."""
        return ListPartitionReassignmentsResponse(error_message=None)


def _elections(
    named: Sequence[ElectLeadersRequestTopicPartitions], errors: Sequence[Sequence[TidelogError | None]]
) -> list[ReplicaElectionResult]:
    return [
        ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                PartitionResult(partition_id=number, error_code=ErrorCode.ELECTION_NOT_NEEDED, error_message=_NOT_NEEDED)
                if error is None
                else PartitionResult(partition_id=number, error_code=admin_code(error), error_message=error_text(error))
                for number, error in zip(topic.partitions, errors_of_topic, strict=True)
            ],
        )
        for topic, errors_of_topic in zip(named, errors, strict=True)
    ]
