"""Answers DescribeAcls, CreateAcls and DeleteAcls: the cluster's bindings (metadata/access/acl.py) in Kafka's terms.

Invariant: an error of one ACL or one filter stands in its place, and refuses no other.
"""

from __future__ import annotations

from typing import Final

from gateway.access.authorization import check_cluster
from gateway.api import BrokerApi
from gateway.kafka.access.acl_bindings import KafkaAcl, KafkaAclFilter, binding_of, described
from gateway.kafka.admin.single_change import one_change
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode, KafkaRejected, admin_code, cut_text, error_text
from gateway.kafka.protocol.admin_messages import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from metadata.access.acl import Acl
from metadata.access.registry import all_records
from metadata.errors import NotFound, TidelogError


class SecurityDisabled(KafkaRejected):
    """A client asks for ACLs of a broker whose authentication is off: none of them would be in force."""

    code = "SECURITY_DISABLED"
    kafka_code = ErrorCode.SECURITY_DISABLED
    default_hint = "Switch authentication on (docs/guides/security.md)."


_DISABLED: Final = "this broker runs without authentication, and so without ACLs"


class KafkaAcls:
    """Answers calls about ACLs for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    async def describe(self, call: KafkaCall, request: DescribeAclsRequest) -> DescribeAclsResponse:
        """Lists the ACLs that the request's filter matches, by resource."""
        wanted = KafkaAclFilter(
            request.resource_type_filter,
            request.resource_name_filter,
            request.pattern_type_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )
        try:
            self._check_enabled()
            check_cluster()
            acls = [
                acl
                for binding in await all_records(self._broker.access.list_acls)
                for acl in described(binding)
                if wanted.matches(acl)
            ]
        except TidelogError as error:
            return DescribeAclsResponse(error_code=admin_code(error), error_message=cut_text(error.message))
        by_resource: dict[tuple[int, str, int], list[AclDescription]] = {}
        for acl in acls:
            by_resource.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(
                AclDescription(principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission_type)
            )
        return DescribeAclsResponse(
            error_message=None,
            resources=[
                DescribeAclsResource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=found)
                for (kind, name, pattern), found in by_resource.items()
            ],
        )

    async def create(self, call: KafkaCall, request: CreateAclsRequest) -> CreateAclsResponse:
        """Adds each ACL; an existing one stays."""
        return CreateAclsResponse(results=[await self._created(call, each) for each in request.creations])

    async def _created(self, call: KafkaCall, asked: AclCreation) -> AclCreationResult:
        try:
            with one_change(self._broker.guard, call):
                self._check_enabled()
                check_cluster()
                binding = binding_of(
                    KafkaAcl(
                        asked.resource_type,
                        asked.resource_name,
                        asked.resource_pattern_type,
                        asked.principal,
                        asked.host,
                        asked.operation,
                        asked.permission_type,
                    )
                )
                await self._broker.access.add_acl(binding, validate_only=False)
        except TidelogError as error:
            return AclCreationResult(error_code=admin_code(error), error_message=error_text(error))
        return AclCreationResult(error_message=None)

    async def delete(self, call: KafkaCall, request: DeleteAclsRequest) -> DeleteAclsResponse:
        """Deletes the ACLs that each filter matches, and answers with all that are gone, including others for the same right."""
        return DeleteAclsResponse(filter_results=[await self._deleted(call, each) for each in request.filters])

    async def _deleted(self, call: KafkaCall, asked: DeleteAclsFilter) -> DeleteAclsFilterResult:
        wanted = KafkaAclFilter(
            asked.resource_type_filter,
            asked.resource_name_filter,
            asked.pattern_type_filter,
            asked.principal_filter,
            asked.host_filter,
            asked.operation,
            asked.permission_type,
        )
        gone: list[DeleteAclsMatchingAcl] = []
        try:
            with one_change(self._broker.guard, call):
                self._check_enabled()
                check_cluster()
                for binding in await all_records(self._broker.access.list_acls):
                    acls = described(binding)
                    if any(map(wanted.matches, acls)):
                        gone += await self._removed(binding, acls)
        except TidelogError as error:
            return DeleteAclsFilterResult(error_code=admin_code(error), error_message=error_text(error), matching_acls=gone)
        return DeleteAclsFilterResult(error_message=None, matching_acls=gone)

    async def _removed(self, binding: Acl, acls: list[KafkaAcl]) -> list[DeleteAclsMatchingAcl]:
        code, message = 0, None
        try:
            await self._broker.access.remove_acl(binding.acl_id, validate_only=False)
        except NotFound:
            return []  # another client was faster
        except TidelogError as error:
            code, message = admin_code(error), error_text(error)
        return [
            DeleteAclsMatchingAcl(
                error_code=code,
                error_message=message,
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
            for acl in acls
        ]

    def _check_enabled(self) -> None:
        if self._broker.guard is None:
            raise SecurityDisabled(_DISABLED)
