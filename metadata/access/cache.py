"""Caches all API keys, SCRAM users, ACLs and quotas in memory, fed by watches, so that a request is checked without waiting.

Invariants: until all were read once, every check raises Unavailable, since an unread ACL may be a denial. While an ACL is
unreadable, every principal but administrators is denied. An unreadable key authenticates no client. While the store is unreachable,
the view holds for `age_s_max`: another broker may have revoked a key or a right.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

from metadata.access.acl import EVERYONE, OPERATIONS, Acl, Rights, decode_acl
from metadata.access.api_key import ApiKey, decode_key
from metadata.access.quota import Quota, decode_quota, quoted_principal
from metadata.access.scram import ScramUser, decode_scram_user
from metadata.errors import Unavailable
from metadata.model import Revision
from metadata.store.interface import KeyValue, MetadataStore
from metadata.store.keys import KeyLayout
from metadata.store.range_watch import RangeWatch, RecordWatch
from metadata.store.view_proof import ViewProof

RecordKind = Literal["key", "acl", "quota", "scram user"]

log = logging.getLogger(__name__)


class AccessCache:
    """Caches keys, ACLs and quotas. Its owner runs `run()` as a task."""

    def __init__(self, store: MetadataStore, layout: KeyLayout | None = None, *, age_s_max: float | None = None) -> None:
        """`age_s_max` bounds the age of the view in seconds; None for a store of this process, whose watches are always current."""
        layout = layout or KeyLayout()
        # Grows with each change of ACLs: holders of cached decisions compare it.
        self.version = 0
        self._subscribers: list[Callable[[], None]] = []
        self._keys = RecordWatch(store, layout.api_keys, decode_key, self._notify)
        self._acls = RecordWatch(store, layout.acls, _decode_acl, self._acls_changed)
        self._quotas = RecordWatch(store, layout.quotas, decode_quota, self._quotas_changed)
        self._scram = RecordWatch(store, layout.scram_users, decode_scram_user, self._notify)
        self._records = (self._keys, self._acls, self._quotas, self._scram)
        self._by_kind: dict[RecordKind, RangeWatch] = {
            "key": self._keys.watched,
            "acl": self._acls.watched,
            "quota": self._quotas.watched,
            "scram user": self._scram.watched,
        }
        self._proof = ViewProof(store, self._records, age_s_max=age_s_max, changed=self._notify)
        self.stale_error = self._proof.stale_error
        self.catch_up = self._proof.catch_up
        self._bindings: dict[str, list[Acl]] = {}
        self._limits: dict[str, Quota] = {}
        self._rights: dict[str, Rights] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as watches:
            for records in self._records:
                watches.create_task(records.watched.run())
            watches.create_task(self._proof.run())

    async def read(self, timeout_s: float) -> bool:
        """Waits for the first reading and its proof; returns False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                for records in self._records:
                    await records.watched.wait_for(Revision(1), None)
                await self._proof.wait_for_first()
        except TimeoutError:
            return False
        return True

    async def wait_for(self, kind: RecordKind, revision: Revision, timeout_s: float) -> bool:
        """Waits until a change of a record of this kind, at `revision`, is in the view; returns False after `timeout_s`.

        The watches of the other kinds prove nothing: each has a pace of its own.
        """
        return await self._by_kind[kind].wait_for(revision, timeout_s)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Calls `changed` after each change. Must not block, nor raise."""
        self._subscribers.append(changed)

    def key(self, key_id: str) -> ApiKey | None:
        """Returns the key, the same object until it changes; None if missing. Raises Unavailable before the first reading."""
        key = self._keys.by_name.get(key_id)
        if key is None:
            self._check_read()
        return key

    def known_key(self, key_id: str) -> ApiKey | None:
        """Returns the key; None where there is none, and before the first reading."""
        return self._keys.by_name.get(key_id)

    def scram_user(self, user: str) -> ScramUser | None:
        """Returns the user, the same object until it changes; None without one. Raises Unavailable before the first reading."""
        found = self._scram.by_name.get(quoted_principal(user))
        if found is None:
            self._check_read()
        return found

    def rights(self, principal: str) -> Rights:
        """Returns the rights of a principal. Raises Unavailable before the first reading, and while an ACL can't be read."""
        rights = self._rights.get(principal)
        if rights is None:
            rights = Rights(self.bindings(principal))
            if principal in self._bindings or len(self._rights) < 10_000:  # rights without own bindings are cheap to make again
                self._rights[principal] = rights
        return rights

    def bindings(self, principal: str) -> list[Acl]:
        """Returns the ACLs that concern a principal. Raises as `rights`."""
        self._check_read()
        if self._acls.damaged:
            raise Unavailable(
                "an ACL can't be read and may be a denial: only administrators are allowed anything until it is repaired",
                hint="The broker's log names its key in the metadata store: delete that key, and add the ACL again.",
            )
        own = self._bindings.get(principal, [])
        return [*own, *self._bindings.get(EVERYONE, [])] if principal != EVERYONE else [*own]

    def quota(self, principal: str) -> Quota | None:
        """Returns the principal's own quota, else the one for `*`."""
        return self._limits.get(principal) or self._limits.get(EVERYONE)

    def _acls_changed(self) -> None:
        bindings: dict[str, list[Acl]] = {}
        for acl in self._acls.by_name.values():
            bindings.setdefault(acl.principal, []).append(acl)
        self._bindings = bindings
        self._rights = {}
        self.version += 1
        self._notify()

    def _quotas_changed(self) -> None:
        self._limits = {quota.principal: quota for quota in self._quotas.by_name.values()}
        self._notify()

    def _notify(self) -> None:
        for changed in self._subscribers:
            changed()

    def _check_read(self) -> None:
        if not all(each.watched.revision for each in self._records):
            raise Unavailable(
                "the keys and ACLs of the cluster have not been read yet", hint="The broker is starting: retry in a moment."
            )


def _decode_acl(kept: KeyValue) -> Acl:
    acl = decode_acl(kept)
    if acl.operation not in OPERATIONS:
        does = "allows nothing" if acl.effect == "allow" else "denies every operation"
        log.warning(
            "ACL of an unknown operation acl_id=%s operation=%s: it %s here; upgrade this broker", acl.acl_id, acl.operation, does
        )
    return acl
