"""Writes docs/reference/kafka-apis.md from what a broker advertises: `python -m docs.kafka_page`. A test compares them."""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from docs.page_broker import described_broker, shown_rights
from gateway.access.permissions import KAFKA_CALLS
from gateway.error_codes import WIRE_CODES, KafkaApiGroup
from gateway.kafka.errors import ErrorCode, KafkaRejected
from gateway.kafka.protocol.api_ranges import API_RANGES
from metadata.errors import TidelogError

PAGE = Path(__file__).parent / "reference" / "kafka-apis.md"
API_VERSIONS = 18
GROUPS: tuple[KafkaApiGroup, ...] = get_args(KafkaApiGroup)
# Names of codes that only gateway/error_codes.py uses. Source: https://kafka.apache.org/protocol#protocol_error_codes
NAMES = {code.value: code.name for code in ErrorCode} | {
    10: "MESSAGE_TOO_LARGE",
    12: "OFFSET_METADATA_TOO_LARGE",
    22: "ILLEGAL_GENERATION",
    23: "INCONSISTENT_GROUP_PROTOCOL",
    24: "INVALID_GROUP_ID",
    25: "UNKNOWN_MEMBER_ID",
    26: "INVALID_SESSION_TIMEOUT",
    27: "REBALANCE_IN_PROGRESS",
    30: "GROUP_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED",
    32: "INVALID_TIMESTAMP",
    36: "TOPIC_ALREADY_EXISTS",
    37: "INVALID_PARTITIONS",
    40: "INVALID_CONFIG",
    41: "NOT_CONTROLLER",
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    46: "DUPLICATE_SEQUENCE_NUMBER",
    47: "INVALID_PRODUCER_EPOCH",
    51: "CONCURRENT_TRANSACTIONS",
    59: "UNKNOWN_PRODUCER_ID",
    68: "NON_EMPTY_GROUP",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    77: "STALE_BROKER_EPOCH",
    79: "MEMBER_ID_REQUIRED",
    81: "GROUP_MAX_SIZE_REACHED",
    82: "FENCED_INSTANCE_ID",
    86: "GROUP_SUBSCRIBED_TO_TOPIC",
    87: "INVALID_RECORD",
    89: "THROTTLING_QUOTA_EXCEEDED",
    90: "PRODUCER_FENCED",
    110: "FENCED_MEMBER_EPOCH",
    111: "UNRELEASED_INSTANCE_ID",
    112: "UNSUPPORTED_ASSIGNOR",
    113: "STALE_MEMBER_EPOCH",
    128: "INVALID_REGULAR_EXPRESSION",
}

_INTRODUCTION = """\
# Kafka APIs

After this page you know which APIs of Kafka's protocol a broker serves, in which versions, and which error codes it answers.
`python -m docs.kafka_page` generates it from what a broker advertises. What differs from Apache Kafka:
[the guide for Kafka clients](../guides/kafka-clients.md).

An API that is missing here is not advertised, so clients do not call it. Rights apply with `authentication` on.

| key | API | versions | rights |
| --- | --- | --- | --- |
"""

_ERRORS = """
## Error codes

The code of an error depends on the group of the API. [errors.md](errors.md) describes each error.

| group | APIs |
| --- | --- |
| produce | Produce |
| fetch | Fetch, for each partition |
| list_offsets | ListOffsets, OffsetForLeaderEpoch |
| group | JoinGroup, SyncGroup, heartbeats, LeaveGroup, offsets of groups, DescribeGroups, ListGroups, DeleteGroups |
| transaction | InitProducerId |
| admin | topics, configs, DeleteRecords, ACLs, quotas |

The listener replaces codes that the version of a request does not know: 100 stands for a topic that was named by its id, 56
becomes 6 in Fetch up to version 5 and Produce up to 3, and 90 becomes 47 in older versions of InitProducerId. A denied call answers
the code of the denied resource: 29 for a topic, 30 for a group, 31 for the cluster. Wrong arguments of administrative calls answer
37, 38 or 40, and a wrong session timeout 26. A fetch that is throttled has code 0, no records and a throttle time.

"""

_NAMES = """
| code | name |
| --- | --- |
"""

_OWN = """
## Errors of Kafka's protocol alone

| code | name | what happened |
| --- | --- | --- |
"""


async def page() -> str:
    """Returns the text of docs/reference/kafka-apis.md."""
    async with described_broker() as broker:
        listener = broker.kafka_listeners[0]
        versions = await _advertised(listener.host, listener.port)
    names = {key: name for key, name, *_ in API_RANGES}
    rows = [
        f"| {key} | {names[key]} | {low} to {high} | {shown_rights(KAFKA_CALLS[names[key]])} |\n"
        for key, (low, high) in sorted(versions.items())
    ]
    return "".join([_INTRODUCTION, *rows, _ERRORS, *_error_rows(), _NAMES, *_name_rows(), _OWN, *_own_rows()])


async def _advertised(host: str, port: int) -> Mapping[int, tuple[int, int]]:
    """Asks ApiVersions in version 0, and returns the lowest and highest version by API key."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        request = struct.pack(">hhih", API_VERSIONS, 0, 1, -1)
        writer.write(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        body = await reader.readexactly(length)
    finally:
        writer.close()
        await writer.wait_closed()
    _, error, count = struct.unpack_from(">ihi", body)
    assert error == ErrorCode.NONE, error
    return {key: (low, high) for key, low, high in struct.iter_unpack(">hhh", body[10 : 10 + 6 * count])}


def _error_rows() -> list[str]:
    head = f"| error | {' | '.join(GROUPS)} |\n{'| --- ' * (1 + len(GROUPS))}|\n"
    return [head] + [
        f"| [{kind.code}](errors.md#{kind.code.lower()}) | {' | '.join(str(getattr(codes, group)) for group in GROUPS)} |\n"
        for kind, codes in WIRE_CODES.items()
    ]


def _name_rows() -> list[str]:
    return [f"| {code} | {name} |\n" for code, name in sorted(NAMES.items())]


def _own_rows() -> list[str]:
    return [
        f"| {kind.kafka_code} | {kind.kafka_code.name} | `{kind.code}`: {' '.join((kind.__doc__ or '').split())} |\n"
        for kind in sorted(KafkaRejected.__subclasses__(), key=lambda kind: (kind.kafka_code, kind.code))
        if kind.__module__.startswith("gateway.")
    ]


def shown_codes(kind: type[TidelogError]) -> str:
    """Returns Kafka's codes of a class of errors, those of all groups of APIs together where they are the same."""
    by_code: dict[int, list[str]] = defaultdict(list)
    for group in GROUPS:
        by_code[getattr(WIRE_CODES[kind], group)].append(group)
    if len(by_code) == 1:
        return " ".join(f"{code} {NAMES[code]}" for code in by_code)
    return "; ".join(f"{', '.join(groups)}: {code} {NAMES[code]}" for code, groups in by_code.items())


if __name__ == "__main__":
    PAGE.write_text(asyncio.run(page()), encoding="utf-8")
