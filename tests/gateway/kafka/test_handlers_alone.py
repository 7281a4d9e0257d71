"""Handlers of Kafka's APIs without a broker: what they answer, and how much they do for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.kafka.access.scram_users import KafkaScramUsers
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode
from gateway.kafka.producer_ids import KafkaProducerIds
from gateway.kafka.protocol.admin_messages import DescribeUserScramCredentialsRequest, UserName
from gateway.kafka.protocol.client_messages import InitProducerIdRequest
from metadata.errors import OutcomeUnknown, Throttled, TidelogError, Unavailable


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
    async def fail() -> int:
        raise error

    broker: Any = SimpleNamespace(producer_ids=SimpleNamespace(next=fail))
    answer = asyncio.run(KafkaProducerIds(broker).init_producer_id(call(4), InitProducerIdRequest(transactional_id=None)))
    assert answer.error_code == code


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

    broker: Any = SimpleNamespace(access=SimpleNamespace(scram_users=no_users))
    users = [UserName(name=_Name(f"user-{number}")) for number in range(300)]
    request = DescribeUserScramCredentialsRequest(users=users)
    answer = asyncio.run(KafkaScramUsers(broker).describe(call(0), request))
    assert len(answer.results) == 300
    assert _Name.compared < 10 * 300
