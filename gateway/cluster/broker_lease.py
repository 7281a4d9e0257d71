"""A broker's place in the cluster: its key among the brokers, and the lease that keeps it there.

    join ─▶ key under a lease ─▶ keep: renewed every third of its time ─▶ leave, or lost
                                  └─ written anew where this broker drains, or can't write to the bucket

Losing it loses no record and stops nothing by itself: the bucket decides what is committed. It tells that another may be about to
seal this session, so that the broker had better begin a new one. Invariant: a session joins once; after `keep` has returned, it
never comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Set

import msgspec

from metadata.cluster.broker_registry import FORMAT_VERSION, BrokerRegistration, decode_registration, encode_registration
from metadata.errors import Corrupt, OutcomeUnknown, Rejected, TidelogError, Unavailable
from metadata.model import SessionId
from metadata.store.interface import NO_LEASE, Compare, KeyValue, LeaseId, LeaseLost, MetadataStore, Put
from metadata.store.keys import KeyLayout

# Before a step that the metadata store could not do is tried again.
PAUSE_S = 0.5
LEAVE_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


class BrokerLease:
    """Of one session. Its owner calls `join`, then runs `keep()` as a task, and calls `leave` in the end."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout,
        registration: BrokerRegistration,
        *,
        ttl_s: float,
        own_sessions: Set[SessionId] = frozenset(),
    ) -> None:
        """`own_sessions`: those that this process had before, none where it has just begun."""
        self._store = store
        self._own_sessions = own_sessions
        self._key = layout.broker(registration.broker_id)
        self._registration = registration
        self._ttl_s = ttl_s
        self._draining = False
        self._unwritable_bytes = 0
        self._told = asyncio.Event()
        self._sure_until_s = 0.0
        self.lease: LeaseId | None = None

    @property
    def sure(self) -> bool:
        """Whether the lease can't have ended yet, so that nobody can have been appointed in this session's place."""
        return asyncio.get_running_loop().time() < self._sure_until_s

    async def join(self) -> bool:
        """Registers the session, as soon as the store can be reached. What an earlier process of this broker left is removed.

        False when it is not certain that it was never registered before: then it must not be registered again. Raises Rejected
        where another process has taken this broker's place since it had a session.
        """
        while True:
            try:
                asked_s = asyncio.get_running_loop().time()
                lease = await self._store.grant_lease(self._ttl_s)
                held = await self._store.get(self._key)
                if held is not None and held.lease != NO_LEASE:
                    self._check_place(held)
                    self._tell_of_replacing(held)
                    await self._store.revoke_lease(held.lease)
                break
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("%s could not be registered; trying again: %s", self._key, error)
                await asyncio.sleep(PAUSE_S)
        self.lease = lease
        self._sure_until_s = asked_s + self._ttl_s
        left = held.mod_revision if held is not None and held.lease == NO_LEASE else 0  # put there by hand: nobody's
        put = Put(self._key, encode_registration(self._registration), lease)
        try:
            result = await self._store.transact([Compare(self._key, left)], [put])
            if result.succeeded:
                return True
            why: Exception | str = "another process with this id came first"
        except (LeaseLost, Unavailable, OutcomeUnknown) as error:
            why = error
        log.warning("%s could not be registered; a new session is needed: %s", self._key, why)
        await asyncio.sleep(PAUSE_S)
        return False

    async def keep(self) -> None:
        """Renews the lease, and tells of a drain, until the registration is lost: by the lease, or because somebody removed it.

        Raises Rejected when another process has registered as the same broker; later, at the next `join`, where it can't be asked.
        """
        try:
            while True:
                pause_s = self._ttl_s / 3
                self._told.clear()
                try:
                    await self._renew()
                    await self._tell()
                except TidelogError as error:  # also one that says no: the lease tells in the end
                    log.warning("the lease of %s could not be renewed: %s", self._key, error)
                    pause_s = min(pause_s, PAUSE_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._told.wait()
        except LeaseLost:
            log.warning("the registration of %s was lost", self._key)
            await self._check_id()
        finally:
            self._sure_until_s = 0.0

    async def _renew(self) -> None:
        assert self.lease is not None, "join comes first"
        asked_s = asyncio.get_running_loop().time()
        self._sure_until_s = max(self._sure_until_s, asked_s + await self._store.keep_alive(self.lease))

    async def _check_id(self) -> None:
        with contextlib.suppress(Unavailable):
            held = await self._store.get(self._key)
            if held is not None and held.lease != self.lease:
                raise self._replaced(held)

    def _check_place(self, held: KeyValue) -> None:
        """Of two processes with one id the later one stays: else they would remove each other in turn."""
        with contextlib.suppress(Corrupt):
            if self._own_sessions and decode_registration(held).registration.session not in self._own_sessions:
                raise self._replaced(held)

    def _tell_of_replacing(self, held: KeyValue) -> None:
        """Most often of this broker before its restart, at the same address; else of one that lives, and ends by this."""
        other, own = _registered(held), self._registration
        if other is None or other.session in self._own_sessions:
            return
        if (other.http_address, other.grpc_address) == (own.http_address, own.grpc_address):
            log.info("%s takes the place of its %s, which did not end in order", self._key, _told(other))
        else:
            log.warning(
                "%s replaces another process with this id: %s. If that one still runs, it stops: give each broker an id of its own "
                "(--broker-id)",
                self._key,
                _told(other),
            )

    def _replaced(self, held: KeyValue) -> Rejected:
        by = _registered(held)
        return Rejected(
            f"another process has registered as {self._key}" + (f": {_told(by)}" if by is not None else ""),
            hint="Give each broker an id of its own (--broker-id), or stop the other one.",
        )

    async def _tell(self) -> None:
        """Finds that the registration is still there, and writes into it what others have to know."""
        held = await self._store.get(self._key)
        if held is None or held.lease != self.lease:
            raise LeaseLost
        try:
            registration = decode_registration(held).registration
        except Corrupt as error:  # nobody sees this broker any more
            raise LeaseLost from error
        changed = msgspec.structs.replace(
            registration,
            draining=registration.draining or self._draining,
            unwritable_bytes=self._unwritable_bytes,
            node_id=self._registration.node_id,  # a broker of an earlier version drops these where it writes `draining`
            kafka_listeners=self._registration.kafka_listeners,
        )
        if changed != registration and registration.format_version <= FORMAT_VERSION:
            put = Put(self._key, encode_registration(changed), self.lease)
            result = await self._store.transact([Compare(self._key, held.mod_revision)], [put])
            if not result.succeeded:  # an operator came between
                raise Unavailable(f"{self._key} has changed meanwhile")

    def drain(self) -> None:
        """Asks to be given no more partitions, and to be rid of those it has."""
        self._draining = True
        self._told.set()

    def tell_unwritable(self, bytes_min: int) -> None:
        """That objects of this size can't be written to the bucket; 0: that they can."""
        if bool(bytes_min) != bool(self._unwritable_bytes):
            self._unwritable_bytes = bytes_min
            self._told.set()

    def look(self) -> None:
        """Asks whether the registration is still there, at once: a watch says that it is not."""
        self._told.set()

    async def leave(self) -> None:
        """Ends the registration at once, so that others need not wait for the lease to end. Where that fails, they do."""
        if self.lease is None:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._store.revoke_lease(self.lease)
        except (TidelogError, TimeoutError) as error:
            log.warning("%s is left to its lease: %s", self._key, error or "no answer in time")


def _registered(held: KeyValue) -> BrokerRegistration | None:
    """None where it can't be read."""
    try:
        return decode_registration(held).registration
    except Corrupt:
        return None


def _told(other: BrokerRegistration) -> str:
    return f"session {other.session}, at http {other.http_address or '-'}, grpc {other.grpc_address or '-'}"
