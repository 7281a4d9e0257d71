"""Serves Access over gRPC: API keys, ACLs and quotas."""

from __future__ import annotations

import time
from typing import Any, Final

from google.protobuf.message import Message

from gateway.api import BrokerApi
from gateway.grpc.calls import MethodHandler, unary
from gateway.proto import admin_pb2
from gateway.proto.status import to_status
from metadata.access.acl import EVERY_NAME, Acl, Scope
from metadata.access.api_key import ApiKey
from metadata.access.quota import Quota

SERVICE: Final = "tidelog.v1.Access"


class AccessService:
    """Translates the calls of the service Access to the broker's access administration."""

    def __init__(self, broker: BrokerApi) -> None:
        self._access = broker.access

    def handlers(self) -> dict[str, MethodHandler]:
        return {
            "CreateKey": unary(admin_pb2.CreateKeyRequest, self.create_key),
            "ListKeys": unary(admin_pb2.ListKeysRequest, self.list_keys),
            "RevokeKey": unary(admin_pb2.RevokeKeyRequest, self.revoke_key),
            "CreateAcl": unary(admin_pb2.CreateAclRequest, self.create_acl),
            "ListAcls": unary(admin_pb2.ListAclsRequest, self.list_acls),
            "DeleteAcl": unary(admin_pb2.DeleteAclRequest, self.delete_acl),
            "SetQuota": unary(admin_pb2.SetQuotaRequest, self.set_quota),
            "ListQuotas": unary(admin_pb2.ListQuotasRequest, self.list_quotas),
            "DeleteQuota": unary(admin_pb2.DeleteQuotaRequest, self.delete_quota),
        }

    async def create_key(self, request: admin_pb2.CreateKeyRequest) -> Message:
        made = await self._access.create_key(
            request.principal,
            expires_at_ms=request.expires_at_ms,
            scopes=map(_scope, request.scopes),
            description=request.description,
            validate_only=request.validate_only,
        )
        return admin_pb2.CreatedKey(key=_key(made.key), text=made.text.reveal())

    async def list_keys(self, request: admin_pb2.ListKeysRequest) -> Message:
        page = await self._access.list_keys(page_size=request.page_size, page_token=request.page_token)
        errors = map(to_status, page.errors)
        return admin_pb2.ListKeysResponse(keys=map(_key, page.records), next_page_token=page.next_page_token, errors=errors)

    async def revoke_key(self, request: admin_pb2.RevokeKeyRequest) -> Message:
        return _key(await self._access.revoke_key(request.key_id, validate_only=request.validate_only))

    async def create_acl(self, request: admin_pb2.CreateAclRequest) -> Message:
        return _acl(await self._access.add_acl(_asked_acl(request.acl), validate_only=request.validate_only))

    async def list_acls(self, request: admin_pb2.ListAclsRequest) -> Message:
        page = await self._access.list_acls(page_size=request.page_size, page_token=request.page_token)
        errors = map(to_status, page.errors)
        return admin_pb2.ListAclsResponse(acls=map(_acl, page.records), next_page_token=page.next_page_token, errors=errors)

    async def delete_acl(self, request: admin_pb2.DeleteAclRequest) -> Message:
        return _acl(await self._access.remove_acl(request.acl_id, validate_only=request.validate_only))

    async def set_quota(self, request: admin_pb2.SetQuotaRequest) -> Message:
        asked = request.quota
        quota = Quota(
            principal=asked.principal,
            bytes_in_per_second=asked.bytes_in_per_second,
            bytes_out_per_second=asked.bytes_out_per_second,
            requests_per_second=asked.requests_per_second,
        )
        return _quota(await self._access.set_quota(quota, validate_only=request.validate_only))

    async def list_quotas(self, request: admin_pb2.ListQuotasRequest) -> Message:
        page = await self._access.list_quotas(page_size=request.page_size, page_token=request.page_token)
        errors = map(to_status, page.errors)
        return admin_pb2.ListQuotasResponse(quotas=map(_quota, page.records), next_page_token=page.next_page_token, errors=errors)

    async def delete_quota(self, request: admin_pb2.DeleteQuotaRequest) -> Message:
        return _quota(await self._access.remove_quota(request.principal, validate_only=request.validate_only))


def _scope(asked: admin_pb2.Scope) -> Scope:
    words: Any = (asked.operation, asked.resource, asked.name or EVERY_NAME, asked.pattern or "literal")
    return Scope(*words)  # check_scope validates them


def _asked_acl(asked: admin_pb2.Acl) -> Acl:
    words: dict[str, Any] = {
        "principal": asked.principal,
        "effect": asked.effect or "allow",
        "operation": asked.operation,
        "resource": asked.resource,
        "name": asked.name or ("" if asked.resource != "cluster" else EVERY_NAME),
        "pattern": asked.pattern or "literal",
    }
    return Acl(**words)  # check_acl validates them


def _key(key: ApiKey) -> admin_pb2.ApiKey:
    return admin_pb2.ApiKey(
        key_id=key.key_id,
        principal=key.principal,
        description=key.description,
        state=key.state(time.time_ns() // 1_000_000),
        created_at_ms=key.created_at_ms,
        created_by=key.created_by,
        expires_at_ms=key.expires_at_ms,
        revoked_at_ms=key.revoked_at_ms,
        scopes=[
            admin_pb2.Scope(operation=scope.operation, resource=scope.resource, name=scope.name, pattern=scope.pattern)
            for scope in key.scopes
        ],
    )


def _acl(acl: Acl) -> admin_pb2.Acl:
    return admin_pb2.Acl(
        acl_id=acl.acl_id,
        principal=acl.principal,
        effect=acl.effect,
        operation=acl.operation,
        resource=acl.resource,
        name=acl.name,
        pattern=acl.pattern,
    )


def _quota(quota: Quota) -> admin_pb2.Quota:
    return admin_pb2.Quota(
        principal=quota.principal,
        bytes_in_per_second=quota.bytes_in_per_second,
        bytes_out_per_second=quota.bytes_out_per_second,
        requests_per_second=quota.requests_per_second,
    )
