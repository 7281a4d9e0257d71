"""Translates the messages of a Consume stream between protobuf and the package's values. Pure.

Checks what can be judged from the message alone; each refusal names its field. The coordinator checks what depends on the group,
such
as the bounds of session timeouts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gateway.grpc.consume.partitions import ConsumedPartition, Start, StartKind
from gateway.proto import groups_pb2, log_pb2
from gateway.proto.status import to_status
from gateway.settings import GatewaySettings
from metadata.errors import InvalidArgument, TidelogError
from metadata.group_member.settings import MemberSettings
from metadata.group_member.start_offsets import StartPolicy
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import check_group_name, shown
from metadata.model import check_client_rack

HEARTBEAT_MS: Final = 5_000
HEARTBEAT_MS_LEAST: Final = 100
HEARTBEAT_MS_MOST: Final = 60_000
# Largest number of offsets in one commit, and of partitions in one message that pauses or resumes.
OFFSETS_MAX: Final = 10_000
# Largest size of a client's message; it carries no records.
MESSAGE_BYTES_MAX: Final = 4 << 20

_OF_MEMBERS: Final = ("instance_id", "client_id", "session_timeout_ms", "max_poll_interval_ms", "assignors")
_RESETS: Final = {
    log_pb2.AUTO_OFFSET_RESET_UNSPECIFIED: StartPolicy.EARLIEST,
    log_pb2.AUTO_OFFSET_RESET_EARLIEST: StartPolicy.EARLIEST,
    log_pb2.AUTO_OFFSET_RESET_LATEST: StartPolicy.LATEST,
    log_pb2.AUTO_OFFSET_RESET_ERROR: StartPolicy.ERROR,
}


class NamedStart(NamedTuple):
    """Names the offset or time at which one partition is read."""

    topic: str
    partition: int
    topic_id: str
    offset: int | None
    # Used if there is no offset.
    start: Start


class ConsumeOptions(NamedTuple):
    """Holds the checked configuration of one Consume stream."""

    topics: tuple[str, ...]
    # Empty for a stream without a group.
    group: str
    member: MemberSettings
    starts: tuple[NamedStart, ...]
    reset: StartPolicy
    bytes_max: int
    structured: bool
    heartbeat_s: float
    client_rack: str = ""


# ── asked ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def terms_of(start: log_pb2.ConsumeStart, settings: GatewaySettings) -> ConsumeOptions:
    if not start.topics and not start.starts:
        raise InvalidArgument("no topic is named", hint="Name at least one topic to read.", field="start.topics")
    _check_once([(topic,) for topic in start.topics], "start.topics")
    if start.auto_offset_reset not in _RESETS:
        raise InvalidArgument(f"auto_offset_reset {start.auto_offset_reset} is not known", field="start.auto_offset_reset")
    if start.format not in log_pb2.FetchFormat.values():
        raise InvalidArgument(f"format {start.format} is not known", field="start.format")
    heartbeat_ms = start.heartbeat_interval_ms or HEARTBEAT_MS
    if not HEARTBEAT_MS_LEAST <= heartbeat_ms <= HEARTBEAT_MS_MOST:
        raise InvalidArgument(
            f"heartbeat_interval_ms is {heartbeat_ms}; {HEARTBEAT_MS_LEAST} to {HEARTBEAT_MS_MOST} are taken",
            field="start.heartbeat_interval_ms",
        )
    if start.group:
        check_group_name(start.group)
        if start.starts:
            raise InvalidArgument(
                "a member of a group begins at the committed offsets of the group",
                hint="Omit starts, or omit group; operators move a group by `tidelog group seek`.",
                field="start.starts",
            )
    for field in _OF_MEMBERS:
        if not start.group and getattr(start, field):
            raise InvalidArgument(f"{field} applies to members of a group, and no group is named", field=f"start.{field}")
    starts = tuple(_named_start(each, f"start.starts[{at}]") for at, each in enumerate(start.starts))
    _check_once([(each.topic, each.partition) for each in starts], "start.starts")
    return ConsumeOptions(
        tuple(start.topics),
        start.group,
        _member(start),
        starts,
        _RESETS[start.auto_offset_reset],
        min(start.max_bytes or settings.fetch_bytes_max, settings.fetch_bytes_max),
        start.format == log_pb2.FETCH_FORMAT_RECORDS,
        heartbeat_ms / 1000,
        check_client_rack(start.client_rack, field="start.client_rack"),
    )


def _member(start: log_pb2.ConsumeStart) -> MemberSettings:
    default = MemberSettings()
    try:
        return MemberSettings(
            session_timeout_ms=start.session_timeout_ms or default.session_timeout_ms,
            max_poll_interval_ms=start.max_poll_interval_ms or default.max_poll_interval_ms,
            assignors=tuple(start.assignors) or default.assignors,
            instance_id=start.instance_id,
            client_id=start.client_id or default.client_id,
        )
    except InvalidArgument as error:  # 0 stands for the default, and no default lies below it
        error.details["field"] = f"start.{error.details.get('field', 'assignors')}"
        raise


def _named_start(message: log_pb2.ConsumeFrom, field: str) -> NamedStart:
    match message.WhichOneof("at"):
        case "offset":
            if message.offset < 0:
                raise InvalidArgument(f"there is no offset {message.offset}; offsets begin at 0", field=f"{field}.offset")
            return NamedStart(message.topic, message.partition, message.topic_id, message.offset, Start(StartKind.EARLIEST))
        case "earliest":
            start = Start(StartKind.EARLIEST)
        case "latest":
            start = Start(StartKind.LATEST)
        case "timestamp_ms":
            start = Start(StartKind.TIMESTAMP, message.timestamp_ms)
        case _:
            raise InvalidArgument("it says neither offset nor earliest nor latest nor timestamp_ms", field=f"{field}.at")
    return NamedStart(message.topic, message.partition, message.topic_id, None, start)


def _check_once(names: Sequence[tuple[object, ...]], field: str) -> None:
    seen: set[tuple[object, ...]] = set()
    for at, name in enumerate(names):
        if name in seen:
            raise InvalidArgument(f"{shown('/'.join(map(str, name)))} is named twice", field=f"{field}[{at}]")
        seen.add(name)


def check_request(request: log_pb2.ConsumeRequest, *, first: bool, in_group: bool) -> None:
    """Raises InvalidArgument for a message that no client may send."""
    if request.HasField("start") != first:
        raise InvalidArgument(
            "the first message carries no start" if first else "start came again, behind the first message",
            hint="The first message of a stream configures it, and no other.",
            field="start",
        )
    if request.credit_bytes < 0:
        raise InvalidArgument(
            f"a credit of {request.credit_bytes} bytes can't be given", hint="Give 0 or more.", field="credit_bytes"
        )
    if request.HasField("commit"):
        if first or not in_group:
            why = "nothing was delivered yet" if first else "the stream reads alone, without a group"
            raise InvalidArgument(f"there is nothing to commit: {why}", field="commit")
        _check_commit(request.commit)
    if request.released and (first or not in_group):
        raise InvalidArgument("nothing was revoked that could be let go of", field="released")
    for field, asked in (("pause", request.pause), ("resume", request.resume)):
        if sum(len(each.partitions) for each in asked) > OFFSETS_MAX:
            raise InvalidArgument(f"more than {OFFSETS_MAX} partitions are named", field=field)
        for at, each in enumerate(asked):
            if not each.partitions:
                raise InvalidArgument(f"no partition of topic {shown(each.topic)} is named", field=f"{field}[{at}].partitions")


def _check_commit(commit: log_pb2.ConsumeCommit) -> None:
    if bool(commit.offsets) == bool(commit.up_to_delivery_id):
        raise InvalidArgument(
            "a commit names either offsets or up_to_delivery_id", hint="Send two commits for both.", field="commit"
        )
    if len(commit.offsets) > OFFSETS_MAX:
        raise InvalidArgument(f"offsets has {len(commit.offsets)} entries; {OFFSETS_MAX} are taken", field="commit.offsets")
    _check_once([(each.topic, each.partition) for each in commit.offsets], "commit.offsets")


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def assigned(partitions: Iterable[TopicPartitionName], member_id: str, generation: int) -> log_pb2.ConsumeResponse:
    message = log_pb2.PartitionsAssigned(partitions=_by_topic(partitions), member_id=member_id, generation=generation)
    return log_pb2.ConsumeResponse(assigned=message)


def revoked(partitions: Iterable[TopicPartitionName], revocation_id: int, within_s: float) -> log_pb2.ConsumeResponse:
    message = log_pb2.PartitionsRevoked(
        partitions=_by_topic(partitions), revocation_id=revocation_id, within_ms=max(0, round(1000 * within_s))
    )
    return log_pb2.ConsumeResponse(revoked=message)


def lost(partitions: Iterable[TopicPartitionName]) -> log_pb2.ConsumeResponse:
    return log_pb2.ConsumeResponse(lost=log_pb2.PartitionsLost(partitions=_by_topic(partitions)))


def committed(commit_id: int, results: Iterable[tuple[TopicPartitionName, int, TidelogError | None]]) -> log_pb2.ConsumeResponse:
    """Makes the outcome of a commit: each partition with its offset, and the error if it is not committed."""
    outcome = log_pb2.CommitOutcome(commit_id=commit_id)
    for (topic, partition), offset, error in results:
        result = outcome.results.add(topic=topic, partition=partition, offset=offset)
        if error is not None:
            result.error.CopyFrom(to_status(error))
    return log_pb2.ConsumeResponse(committed=outcome)


def failed(consumed: ConsumedPartition, error: TidelogError, delivery_id: int) -> log_pb2.ConsumeResponse:
    data = log_pb2.ConsumedData(delivery_id=delivery_id)
    partition = data.partitions.add(topic=consumed.topic, partition=consumed.number, next_offset=consumed.offset)
    partition.high_watermark = consumed.high_watermark
    partition.error.CopyFrom(to_status(error))
    return log_pb2.ConsumeResponse(data=data)


def progress(moved: Iterable[ConsumedPartition]) -> log_pb2.ConsumeResponse:
    message = log_pb2.ConsumeProgress()
    for each in moved:
        message.partitions.add(topic=each.topic, partition=each.number, next_offset=each.offset, high_watermark=each.high_watermark)
    return log_pb2.ConsumeResponse(progress=message)


def _by_topic(partitions: Iterable[TopicPartitionName]) -> list[groups_pb2.TopicPartitions]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        numbers[topic].append(number)
    return [groups_pb2.TopicPartitions(topic=topic, partitions=of_topic) for topic, of_topic in numbers.items()]
