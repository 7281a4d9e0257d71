"""Creates, lists and removes API keys, ACLs and quotas, one key of the store each. api_key.py, acl.py and quota.py draw the values.

Every change is one transaction, guarded by the revision that it was decided on; after a conflict it is decided again.
Errors: those of each call, and of the store (Unavailable, OutcomeUnknown). Invariant: no concurrent change reactivates a revoked
key.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from metadata.access.acl import ACLS_MAX, Acl, Scope, check_acl, decode_acl, encode_acl
from metadata.access.api_key import (
    KEY_ID_BYTES,
    KEYS_MAX,
    SECRET_BYTES,
    ApiKey,
    check_key_id,
    decode_key,
    encode_key,
    forgettable,
    new_key,
)
from metadata.access.quota import QUOTAS_MAX, Quota, check_quota, decode_quota, encode_quota
from metadata.access.scram import (
    MECHANISMS,
    SALT_BYTES,
    SCRAM_USERS_MAX,
    ScramUser,
    decode_scram_user,
    encode_scram_user,
)
from metadata.errors import NotFound, Rejected, TidelogError, Unavailable
from metadata.model import Revision
from metadata.page_token import PAGE_SIZE_MAX, checked_page_size, name_in, token_after
from metadata.secret import Secret
from metadata.store.interface import Compare, Delete, KeyValue, MetadataStore, Put
from metadata.store.keys import KeyLayout

ATTEMPTS_MAX: Final = 16
# Expired keys that are deleted with the creation of a new one, at most.
FORGOTTEN_AT_ONCE: Final = 100
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Page(Generic[_Record]):
    """Holds some records in the order of their keys; `errors` are of those that can't be read."""

    records: tuple[_Record, ...]
    next_page_token: str
    errors: tuple[TidelogError, ...] = ()


async def all_records(list_page: Callable[..., Awaitable[Page[_Record]]]) -> list[_Record]:
    """Returns the records of all pages. Raises Corrupt if one cannot be read: it may be a denial."""
    found: list[_Record] = []
    token = ""
    while True:
        page = await list_page(page_size=PAGE_SIZE_MAX, page_token=token)
        if page.errors:
            raise page.errors[0]
        found += page.records
        token = page.next_page_token
        if not token:
            return found


class CreatedKey(NamedTuple):
    """Holds a new key and its text, which only this answer shows."""

    key: ApiKey
    text: Secret
    revision: Revision


class AccessRegistry:
    """Changes and lists the API keys, ACLs and quotas of a cluster."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout | None = None,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._store = store
        self._layout = layout or KeyLayout()
        self._now_ms = now_ms
        self._random_bytes = random_bytes

    # ── API keys ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_key(
        self,
        principal: str,
        *,
        expires_at_ms: int = 0,
        scopes: Iterable[Scope] = (),
        description: str = "",
        created_by: str = "",
        validate_only: bool = False,
    ) -> CreatedKey:
        """Creates a key. Raises InvalidArgument, and Rejected where the cluster has KEYS_MAX keys."""
        key, text = new_key(
            principal=principal,
            id_bytes=self._random_bytes(KEY_ID_BYTES),
            secret_bytes=self._random_bytes(SECRET_BYTES),
            now_ms=self._now_ms(),
            expires_at_ms=expires_at_ms,
            scopes=scopes,
            description=description,
            created_by=created_by,
            salts={name: self._random_bytes(SALT_BYTES) for name in MECHANISMS},
        )
        kept = [_readable(decode_key, item) for item in await self._all(self._layout.api_keys)]
        old = forgettable((held for held in kept if held is not None), self._now_ms())[:FORGOTTEN_AT_ONCE]
        _check_room(len(kept) - len(old), KEYS_MAX, "API keys", "Revoke unused keys; they are removed after 30 days.")
        if validate_only:
            return CreatedKey(key, Secret(""), Revision(0))
        record_key = self._layout.api_key(key.key_id)
        forgotten = [Delete(self._layout.api_key(held.key_id)) for held in old]
        result = await self._store.transact([Compare(record_key, 0)], [Put(record_key, encode_key(key)), *forgotten])
        if not result.succeeded:  # another key drew the same eight random bytes
            raise Unavailable("the new key's id is taken", hint="Retry.")
        return CreatedKey(key, text, result.revision)

    async def revoke_key(self, key_id: str, *, validate_only: bool = False) -> tuple[ApiKey, Revision]:
        """Revokes a key and returns it; an earlier revocation stays as it was. Raises NotFound."""
        record_key = self._layout.api_key(check_key_id(key_id))
        for _ in range(ATTEMPTS_MAX):
            kept = await self._store.get(record_key)
            if kept is None:
                raise NotFound(f"there is no API key {key_id}", hint="tidelog key list shows them.", key_id=key_id)
            key = decode_key(kept)
            if key.revoked_at_ms:
                return key, kept.mod_revision
            revoked = msgspec.structs.replace(key, revoked_at_ms=self._now_ms())
            if validate_only:
                return revoked, Revision(0)
            result = await self._store.transact([Compare(record_key, kept.mod_revision)], [Put(record_key, encode_key(revoked))])
            if result.succeeded:
                return revoked, result.revision
        raise _lost(f"API key {key_id} was not revoked")

    # ── SCRAM users ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def scram_users(self) -> list[ScramUser]:
        """Returns all users that can be read, in the order of their keys."""
        found = [_readable(decode_scram_user, item) for item in await self._all(self._layout.scram_users)]
        return [user for user in found if user is not None]

    async def alter_scram_user(self, user: str, change: Callable[[ScramUser], ScramUser]) -> Revision:
        """Puts what `change` makes of the user's record; one without credentials is deleted. `change` gets an empty record of a
        user who is not there. Raises what `change` raises; Rejected where the cluster has SCRAM_USERS_MAX of them."""
        record_key = self._layout.scram_user(user)
        for _ in range(ATTEMPTS_MAX):
            kept = await self._store.get(record_key)
            held = decode_scram_user(kept) if kept is not None else ScramUser(user=user, credentials=())
            changed = change(held)
            if kept is None:
                _check_room(len(await self._all(self._layout.scram_users)), SCRAM_USERS_MAX, "SCRAM users", "Delete some.")
            put = Put(record_key, encode_scram_user(changed)) if changed.credentials else Delete(record_key)
            result = await self._store.transact([Compare(record_key, kept.mod_revision if kept is not None else 0)], [put])
            if result.succeeded:
                return result.revision
        raise _lost(f"the credentials of {user} were not changed")

    async def list_keys(self, *, page_size: int = 0, page_token: str = "") -> Page[ApiKey]:
        return await self._list("keys", self._layout.api_keys, decode_key, page_size, page_token)

    # ── ACLs ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def add_acl(self, acl: Acl, *, validate_only: bool = False) -> tuple[Acl, Revision]:
        """Adds a binding, unless it exists. Raises InvalidArgument, and Rejected where the cluster has ACLS_MAX bindings."""
        acl = check_acl(acl)
        record_key = self._layout.acl(acl.acl_id)
        for _ in range(ATTEMPTS_MAX):
            kept = await self._store.get(record_key)
            if kept is not None:
                return decode_acl(kept), kept.mod_revision
            _check_room(len(await self._all(self._layout.acls)), ACLS_MAX, "ACLs", "Use prefixes in place of single names.")
            if validate_only:
                return acl, Revision(0)
            result = await self._store.transact([Compare(record_key, 0)], [Put(record_key, encode_acl(acl))])
            if result.succeeded:
                return acl, result.revision
        raise _lost("the ACL was not added")

    async def remove_acl(self, acl_id: str, *, validate_only: bool = False) -> tuple[Acl, Revision]:
        """Removes a binding and returns it. Raises NotFound."""
        record_key = self._layout.acl(acl_id)
        for _ in range(ATTEMPTS_MAX):
            kept = await self._store.get(record_key) if acl_id.isalnum() else None
            if kept is None:
                raise NotFound(f"there is no ACL {acl_id[:60]}", hint="tidelog acl list shows them with their ids.")
            acl = decode_acl(kept)
            if validate_only:
                return acl, Revision(0)
            result = await self._store.transact([Compare(record_key, kept.mod_revision)], [Delete(record_key)])
            if result.succeeded:
                return acl, result.revision
        raise _lost("the ACL was not removed")

    async def list_acls(self, *, page_size: int = 0, page_token: str = "") -> Page[Acl]:
        return await self._list("ACLs", self._layout.acls, decode_acl, page_size, page_token)

    # ── quotas ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def set_quota(self, quota: Quota, *, validate_only: bool = False) -> tuple[Quota, Revision]:
        """Sets or replaces the principal's quota. Raises InvalidArgument, and Rejected where the cluster has QUOTAS_MAX quotas."""
        check_quota(quota)
        record_key = self._layout.quota(quota.principal)
        for _ in range(ATTEMPTS_MAX):
            kept = await self._store.get(record_key)
            if kept is None:
                await self._check_room_for_quota()
            if validate_only:
                return quota, Revision(0)
            compare = Compare(record_key, kept.mod_revision if kept else 0)
            result = await self._store.transact([compare], [Put(record_key, encode_quota(quota))])
            if result.succeeded:
                return quota, result.revision
        raise _lost("the quota was not set")

    async def alter_quota(
        self, principal: str, change: Callable[[Quota], Quota], *, validate_only: bool = False
    ) -> tuple[Quota, Revision]:
        """Puts what `change` makes of the principal's quota; one without limits is removed. `change` gets a quota without limits
        where there is none, and runs again where another client was faster. Raises as set_quota."""
        record_key = self._layout.quota(principal)
        for _ in range(ATTEMPTS_MAX):
            kept = await self._store.get(record_key)
            changed = change(decode_quota(kept) if kept is not None else Quota(principal=principal))
            if not changed.has_limits and kept is None:
                return changed, Revision(0)
            if changed.has_limits:
                check_quota(changed)
            if kept is None:
                await self._check_room_for_quota()
            if validate_only:
                return changed, Revision(0)
            put = Put(record_key, encode_quota(changed)) if changed.has_limits else Delete(record_key)
            result = await self._store.transact([Compare(record_key, kept.mod_revision if kept else 0)], [put])
            if result.succeeded:
                return changed, result.revision
        raise _lost("the quota was not changed")

    async def _check_room_for_quota(self) -> None:
        hint = "Set one for *, which applies to all others."
        _check_room(len(await self._all(self._layout.quotas)), QUOTAS_MAX, "quotas", hint)

    async def remove_quota(self, principal: str, *, validate_only: bool = False) -> tuple[Quota, Revision]:
        """Removes a quota and returns it. Raises NotFound."""
        record_key = self._layout.quota(principal)
        for _ in range(ATTEMPTS_MAX):
            kept = await self._store.get(record_key)
            if kept is None:
                raise NotFound(f"principal {principal[:60]} has no quota", hint="tidelog quota list shows them.")
            quota = decode_quota(kept)
            if validate_only:
                return quota, Revision(0)
            result = await self._store.transact([Compare(record_key, kept.mod_revision)], [Delete(record_key)])
            if result.succeeded:
                return quota, result.revision
        raise _lost("the quota was not removed")

    async def list_quotas(self, *, page_size: int = 0, page_token: str = "") -> Page[Quota]:
        return await self._list("quotas", self._layout.quotas, decode_quota, page_size, page_token)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _list(
        self, what: str, prefix: str, decode: Callable[[KeyValue], _Record], page_size: int, page_token: str
    ) -> Page[_Record]:
        """Returns up to `page_size` records after the page that gave the token. Raises InvalidArgument for an unknown token."""
        limit = checked_page_size(page_size)
        after = prefix + name_in(page_token, of=what) if page_token else ""
        found = await self._store.range(prefix, start_after=after, limit=limit)
        records: list[_Record] = []
        errors: list[TidelogError] = []
        for item in found.items:
            try:
                records.append(decode(item))
            except TidelogError as error:
                errors.append(error.with_traceback(None))
        token = token_after(found.items[-1].key.removeprefix(prefix)) if found.more else ""
        return Page(tuple(records), token, tuple(errors))

    async def _all(self, prefix: str) -> Sequence[KeyValue]:
        return (await self._store.range(prefix)).items


def _readable(decode: Callable[[KeyValue], _Record], kept: KeyValue) -> _Record | None:
    try:
        return decode(kept)
    except TidelogError:
        return None


def _check_room(there: int, most: int, what: str, hint: str) -> None:
    if there >= most:
        raise Rejected(f"the cluster has {there} {what}, and may have {most}", hint=hint)


def _lost(what: str) -> Unavailable:
    return Unavailable(f"{what}: {ATTEMPTS_MAX} attempts lost to concurrent changes", hint="Retry.")
