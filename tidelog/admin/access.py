"""Manages API keys, ACLs and quotas: `log.access`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.proto import admin_pb2
from gateway.proto.status import from_status
from gateway.proto.values import value_of
from tidelog.transport.connection import Connection

PAGE_SIZE = 1_000


class Scope(msgspec.Struct, frozen=True):
    """A restriction of an API key to one operation on some resources."""

    # describe, read, write, create, admin or all.
    operation: str
    # topic, group or cluster.
    resource: str
    name: str = "*"
    # literal, or prefix.
    pattern: str = "literal"


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An API key, without its secret."""

    key_id: str
    principal: str
    description: str
    # active, revoked or expired.
    state: str
    created_at_ms: int
    created_by: str
    # 0: never.
    expires_at_ms: int
    revoked_at_ms: int
    scopes: tuple[Scope, ...]


class AclInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An ACL: it allows or denies a principal an operation on a resource."""

    acl_id: str
    principal: str
    effect: str
    operation: str
    resource: str
    name: str
    pattern: str


class QuotaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The quota of one principal at one broker. A rate of 0 is no limit."""

    principal: str
    bytes_in_per_second: int
    bytes_out_per_second: int
    requests_per_second: int


class Access:
    """Every change takes `validate_only`: the broker checks it, answers what would be, and changes nothing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create_key(
        self,
        principal: str,
        *,
        description: str = "",
        expires_at_ms: int = 0,
        scopes: Iterable[Scope] = (),
        validate_only: bool = False,
    ) -> tuple[KeyInfo, str]:
        """Creates a key. Returns it with its secret text (`api_key=…`), shown only once. Raises InvalidArgument, Denied."""
        request = admin_pb2.CreateKeyRequest(
            principal=principal,
            description=description,
            expires_at_ms=expires_at_ms,
            scopes=[
                admin_pb2.Scope(operation=scope.operation, resource=scope.resource, name=scope.name, pattern=scope.pattern)
                for scope in scopes
            ],
            validate_only=validate_only,
        )
        made = await self._ask("CreateKey", request, writes=not validate_only)
        return _key(made.key), made.text

    async def keys(self) -> list[KeyInfo]:
        return [_key(key) for page in await self._pages("ListKeys", admin_pb2.ListKeysRequest) for key in page.keys]

    async def revoke_key(self, key_id: str, *, validate_only: bool = False) -> KeyInfo:
        """Revokes the key at once. Raises NotFound."""
        request = admin_pb2.RevokeKeyRequest(key_id=key_id, validate_only=validate_only)
        return _key(await self._ask("RevokeKey", request, writes=not validate_only))

    async def add_acl(
        self,
        principal: str,
        operation: str,
        resource: str,
        name: str = "*",
        *,
        pattern: str = "literal",
        effect: str = "allow",
        validate_only: bool = False,
    ) -> AclInfo:
        """Adds an ACL, or returns the existing one if it is equal. Raises InvalidArgument."""
        acl = admin_pb2.Acl(principal=principal, effect=effect, operation=operation, resource=resource, name=name, pattern=pattern)
        request = admin_pb2.CreateAclRequest(acl=acl, validate_only=validate_only)
        return value_of(await self._ask("CreateAcl", request, writes=not validate_only), AclInfo)

    async def acls(self) -> list[AclInfo]:
        return [value_of(acl, AclInfo) for page in await self._pages("ListAcls", admin_pb2.ListAclsRequest) for acl in page.acls]

    async def remove_acl(self, acl_id: str, *, validate_only: bool = False) -> AclInfo:
        """Raises NotFound."""
        request = admin_pb2.DeleteAclRequest(acl_id=acl_id, validate_only=validate_only)
        return value_of(await self._ask("DeleteAcl", request, writes=not validate_only), AclInfo)

    async def set_quota(
        self,
        principal: str,
        *,
        bytes_in_per_second: int = 0,
        bytes_out_per_second: int = 0,
        requests_per_second: int = 0,
        validate_only: bool = False,
    ) -> QuotaInfo:
        """Replaces the quota of a principal; `*` stands for all principals without one. Raises InvalidArgument."""
        quota = admin_pb2.Quota(
            principal=principal,
            bytes_in_per_second=bytes_in_per_second,
            bytes_out_per_second=bytes_out_per_second,
            requests_per_second=requests_per_second,
        )
        request = admin_pb2.SetQuotaRequest(quota=quota, validate_only=validate_only)
        return value_of(await self._ask("SetQuota", request, writes=not validate_only), QuotaInfo)

    async def quotas(self) -> list[QuotaInfo]:
        return [
            value_of(quota, QuotaInfo)
            for page in await self._pages("ListQuotas", admin_pb2.ListQuotasRequest)
            for quota in page.quotas
        ]

    async def remove_quota(self, principal: str, *, validate_only: bool = False) -> QuotaInfo:
        """Raises NotFound."""
        request = admin_pb2.DeleteQuotaRequest(principal=principal, validate_only=validate_only)
        return value_of(await self._ask("DeleteQuota", request, writes=not validate_only), QuotaInfo)

    async def _pages(self, method: str, request_type: Any) -> list[Any]:
        pages: list[Any] = []
        page_token = ""
        while True:
            page = await self._ask(method, request_type(page_size=PAGE_SIZE, page_token=page_token), writes=False)
            for error in page.errors:
                raise from_status(error, address="")
            pages.append(page)
            page_token = page.next_page_token
            if not page_token:
                return pages

    async def _ask(self, method: str, request: Any, *, writes: bool) -> Any:
        return await self._connection.call(
            lambda to, timeout_s: getattr(to.access, method)(request, timeout=timeout_s), writes=writes
        )


def _key(key: admin_pb2.ApiKey) -> KeyInfo:
    return value_of(key, KeyInfo, scopes=tuple(value_of(scope, Scope) for scope in key.scopes))
