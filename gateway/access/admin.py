"""Changes API keys, ACLs, quotas and SCRAM users for operators, at every listener.

A change is in force at this broker when the call returns, and at the others once their watch delivers it, some milliseconds later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gateway.access.authorization import note_resource, note_validate_only, present_principal
from metadata.access.acl import Acl, Scope
from metadata.access.api_key import ApiKey
from metadata.access.cache import AccessCache, RecordKind
from metadata.access.quota import Quota
from metadata.access.registry import AccessRegistry, CreatedKey, Page
from metadata.access.scram import ScramUser
from metadata.errors import TidelogError
from metadata.model import Revision

# How long a call waits until this broker's own view holds the change.
SEEN_TIMEOUT_S: Final = 5.0


class AccessAdmin:
    """Carries out the operators' changes of keys, ACLs, quotas and SCRAM users, and lists them in pages.

    Each change returns the record as stored, or as it would be with `validate_only`. Raises as AccessRegistry.
    """

    def __init__(self, records: AccessRegistry, cache: AccessCache | None) -> None:
        """`cache` is None where authentication is off: changes are stored then, and take effect once it is on."""
        self._records = records
        self._cache = cache

    async def create_key(
        self, principal: str, *, expires_at_ms: int, scopes: Iterable[Scope], description: str, validate_only: bool
    ) -> CreatedKey:
        note_validate_only(validate_only)
        note_resource("principal", principal)
        made = await self._records.create_key(
            principal,
            expires_at_ms=expires_at_ms,
            scopes=scopes,
            description=description,
            created_by=present_principal(),
            validate_only=validate_only,
        )
        if not validate_only:
            note_resource("key", made.key.key_id)
        await self._seen("key", made.revision)
        return made

    async def revoke_key(self, key_id: str, *, validate_only: bool) -> ApiKey:
        note_validate_only(validate_only)
        note_resource("key", key_id)
        key, revision = await self._records.revoke_key(key_id, validate_only=validate_only)
        note_resource("principal", key.principal)
        await self._seen("key", revision)
        return key

    async def list_keys(self, *, page_size: int, page_token: str) -> Page[ApiKey]:
        return await self._records.list_keys(page_size=page_size, page_token=page_token)

    async def add_acl(self, acl: Acl, *, validate_only: bool) -> Acl:
        note_validate_only(validate_only)
        note_resource("acl", _shown(acl))
        added, revision = await self._records.add_acl(acl, validate_only=validate_only)
        await self._seen("acl", revision)
        return added

    async def remove_acl(self, acl_id: str, *, validate_only: bool) -> Acl:
        note_validate_only(validate_only)
        try:
            removed, revision = await self._records.remove_acl(acl_id, validate_only=validate_only)
        except TidelogError:
            note_resource("acl", acl_id)
            raise
        note_resource("acl", _shown(removed))
        await self._seen("acl", revision)
        return removed

    async def list_acls(self, *, page_size: int, page_token: str) -> Page[Acl]:
        return await self._records.list_acls(page_size=page_size, page_token=page_token)

    async def set_quota(self, quota: Quota, *, validate_only: bool) -> Quota:
        note_validate_only(validate_only)
        note_resource("quota", quota.principal)
        set_, revision = await self._records.set_quota(quota, validate_only=validate_only)
        await self._seen("quota", revision)
        return set_

    async def alter_quota(self, principal: str, change: Callable[[Quota], Quota], *, validate_only: bool) -> Quota:
        """Changes the quota of a principal. Raises as AccessRegistry.alter_quota."""
        note_validate_only(validate_only)
        note_resource("quota", principal)
        altered, revision = await self._records.alter_quota(principal, change, validate_only=validate_only)
        await self._seen("quota", revision)
        return altered

    async def remove_quota(self, principal: str, *, validate_only: bool) -> Quota:
        note_validate_only(validate_only)
        note_resource("quota", principal)
        removed, revision = await self._records.remove_quota(principal, validate_only=validate_only)
        await self._seen("quota", revision)
        return removed

    async def list_quotas(self, *, page_size: int, page_token: str) -> Page[Quota]:
        return await self._records.list_quotas(page_size=page_size, page_token=page_token)

    async def scram_users(self) -> list[ScramUser]:
        """Returns all SCRAM users that can be read."""
        return await self._records.scram_users()

    async def alter_scram_user(self, user: str, change: Callable[[ScramUser], ScramUser]) -> None:
        """Changes the record of a SCRAM user."""
        note_resource("user", user)
        await self._seen("scram user", await self._records.alter_scram_user(user, change))

    async def _seen(self, kind: RecordKind, revision: Revision) -> None:
        if self._cache is not None and revision:
            await self._cache.wait_for(kind, revision, SEEN_TIMEOUT_S)


def _shown(acl: Acl) -> str:
    """Returns an ACL as the audit log names it: `billing allow read topic:orders`, or `… topics with prefix:orders-`."""
    kind = acl.resource if acl.pattern == "literal" else f"{acl.resource}s with prefix"
    return f"{acl.principal} {acl.effect} {acl.operation} {kind}:{acl.name}"
