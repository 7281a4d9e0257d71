"""Answers DescribeClientQuotas and AlterClientQuotas: the quotas of principals (metadata/access/quota.py) in Kafka's terms.

    user NAME        the principal NAME            user <default> (null)   *: all principals without a quota of their own
    producer_byte_rate   bytes_in_per_second       consumer_byte_rate      bytes_out_per_second

Limits on requests per second have no name in Kafka, and stay as they are. Entities of other kinds are refused: a client id is
chosen by the client.

Source: KIP-546
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.access.authorization import check_cluster
from gateway.api import BrokerApi
from gateway.kafka.admin.single_change import one_change
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import KafkaRejected, admin_code, cut_text
from gateway.kafka.protocol.admin_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntityData,
    DescribeClientQuotasResponseEntryData,
    OpData,
    ValueData,
)
from metadata.access.acl import EVERYONE
from metadata.access.quota import Quota
from metadata.access.registry import all_records
from metadata.errors import TidelogError

USER: Final = "user"
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
# Kafka's keys, and the limits that they name.
_LIMITS: Final = {"producer_byte_rate": "bytes_in_per_second", "consumer_byte_rate": "bytes_out_per_second"}
_ENTITY_TYPES: Final = frozenset({USER, "client-id", "ip"})


class KafkaClientQuotas:
    """Answers calls about quotas for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    async def describe(self, call: KafkaCall, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
        """Lists the quotas of the entities that the components match."""
        try:
            check_cluster()
            found = [
                each
                for each in await all_records(self._broker.access.list_quotas)
                if _matches(each, request.components, is_strict=request.strict)
            ]
        except TidelogError as error:
            return DescribeClientQuotasResponse(error_code=admin_code(error), error_message=cut_text(error.message), entries=None)
        return DescribeClientQuotasResponse(
            error_message=None,
            entries=[
                DescribeClientQuotasResponseEntryData(
                    entity=[DescribeClientQuotasResponseEntityData(entity_type=USER, entity_name=_entity_name(quota))],
                    values=values,
                )
                for quota in found
                if (values := _values(quota))
            ],
        )

    async def alter(self, call: KafkaCall, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
        """Changes the quota of each entity, or answers with its error."""
        return AlterClientQuotasResponse(
            entries=[await self._altered(call, each, validate_only=request.validate_only) for each in request.entries]
        )

    async def _altered(
        self, call: KafkaCall, asked: AlterClientQuotasRequestEntryData, *, validate_only: bool
    ) -> AlterClientQuotasResponseEntryData:
        answer = AlterClientQuotasResponseEntryData(
            error_message=None,
            entity=[
                AlterClientQuotasResponseEntityData(entity_type=each.entity_type, entity_name=each.entity_name)
                for each in asked.entity
            ],
        )
        try:
            with one_change(self._broker.guard, call):
                check_cluster()
                await self._alter(_principal(asked.entity), _changes(asked.ops), validate_only=validate_only)
        except TidelogError as error:
            answer.error_code, answer.error_message = admin_code(error), cut_text(error.message)
        return answer

    async def _alter(self, principal: str, changes: dict[str, int], *, validate_only: bool) -> None:
        def changed(held: Quota) -> Quota:
            return msgspec.structs.replace(held, **changes)

        await self._broker.access.alter_quota(principal, changed, validate_only=validate_only)


def _entity_name(quota: Quota) -> str | None:
    return None if quota.principal == EVERYONE else quota.principal


def _values(quota: Quota) -> list[ValueData]:
    return [ValueData(key=key, value=float(limit)) for key, name in _LIMITS.items() if (limit := getattr(quota, name))]


def _matches(quota: Quota, components: Sequence[ComponentData], *, is_strict: bool) -> bool:
    """Returns whether the quota's entity, which is always a user, matches the components. Raises KafkaRejected."""
    types = [each.entity_type for each in components]
    if len(set(types)) < len(types):
        raise KafkaRejected("a type of entities is named twice")
    for each in components:
        if each.entity_type not in _ENTITY_TYPES:
            raise KafkaRejected(f"{each.entity_type[:60]!r} is no type of entities")
        if each.match_type not in {EXACT, DEFAULT, SPECIFIED}:
            raise KafkaRejected(f"{each.match_type} is no way to match an entity")
    if not components:
        return not is_strict
    return all(each.entity_type == USER and _matches_name(quota, each) for each in components)


def _matches_name(quota: Quota, component: ComponentData) -> bool:
    if component.match_type == SPECIFIED:
        return True
    is_default = quota.principal == EVERYONE
    return is_default if component.match_type == DEFAULT else not is_default and quota.principal == component.match


def _principal(entity: Sequence[AlterClientQuotasRequestEntityData]) -> str:
    """Returns the principal that the entity names. Raises KafkaRejected."""
    if len(entity) != 1 or entity[0].entity_type != USER:
        raise KafkaRejected("quotas are of users: client ids and addresses have none", hint="Name an entity of type user alone.")
    name = entity[0].entity_name
    if name == EVERYONE:
        raise KafkaRejected(
            "* is no user", hint="Use the default of users, which applies to every user without a quota of its own."
        )
    return EVERYONE if name is None else name


def _changes(ops: Sequence[OpData]) -> dict[str, int]:
    """Returns the new limits by their names here; 0 is none. Raises KafkaRejected."""
    changes: dict[str, int] = {}
    for op in ops:
        name = _LIMITS.get(op.key)
        if name is None:
            raise KafkaRejected(f"{op.key[:60]!r} can't be limited", hint=f"Use {' or '.join(_LIMITS)}.")
        if name in changes:
            raise KafkaRejected(f"{op.key} is named twice")
        if not op.remove and not (op.value >= 1 and op.value.is_integer()):
            raise KafkaRejected(f"{op.key} is a whole number of bytes per second from 1 on, not {op.value:g}")
        changes[name] = 0 if op.remove else int(op.value)
    return changes
