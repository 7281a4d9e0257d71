"""Registers a broker in the cluster: its key among the brokers, and the lease that keeps it there.

  join ─▶ key under a lease ─▶ keep: renewed every third of its time ─▶ leave, or lost
                                 └─ rewritten when this broker drains, or cannot write to the bucket

A lost lease loses no record and stops nothing by itself: the bucket decides what is committed. It signals that another broker may
be
about to seal this session, so this broker begins a new one. Invariant: a session joins once; after `keep` has returned, it never
rejoins.
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

# Pause before a failed step of the metadata store is tried again.
PAUSE_S = 0.5
LEAVE_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


class BrokerLease:
    """Holds the registration of one session. Its owner calls `join`, then runs `keep()` as a task, and calls `leave` in the end."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout,
        registration: BrokerRegistration,
        *,
        ttl_s: float,
        own_sessions: Set[SessionId] = frozenset(),
    ) -> None:
        """`own_sessions` are the earlier sessions of this process."""
        self._store = store
        self._own_sessions = own_sessions
        self._key = layout.broker(registration.broker_id)
        self._registration = registration
        self._ttl_s = ttl_s
        self._draining = False
        self._unwritable_bytes = 0
        self._wake = asyncio.Event()
        self._valid_until_s = 0.0
        self.lease: LeaseId | None = None

    @property
    def is_valid(self) -> bool:
        """Returns True while the lease cannot have ended, so that no other session can have been appointed in this one's place."""
        return asyncio.get_running_loop().time() < self._valid_until_s

    async def join(self) -> bool:
        """Registers the session once the store can be reached, and removes what an earlier process of this broker left.

        Returns False if it may have been registered before: then it must not be registered again. Raises Rejected if another
        process has taken
        this broker's place since it had a session.
        """
        while True:
            try:
                asked_s = asyncio.get_running_loop().time()
                lease = await self._store.grant_lease(self._ttl_s)
                held = await self._store.get(self._key)
                if held is not None and held.lease != NO_LEASE:
                    self._check_not_replaced(held)
                    self._log_replaced(held)
                    await self._store.revoke_lease(held.lease)
                break
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("registration failed key=%s: %s; retrying", self._key, error)
                await asyncio.sleep(PAUSE_S)
        self.lease = lease
        self._valid_until_s = asked_s + self._ttl_s
        left = held.mod_revision if held is not None and held.lease == NO_LEASE else 0  # put there by hand, without an owner
        put = Put(self._key, encode_registration(self._registration), lease)
        try:
            result = await self._store.transact([Compare(self._key, left)], [put])
            if result.succeeded:
                return True
            why: Exception | str = "another process with this id came first"
        except (LeaseLost, Unavailable, OutcomeUnknown) as error:
            why = error
        log.warning("registration failed key=%s: %s; a new session begins", self._key, why)
        await asyncio.sleep(PAUSE_S)
        return False

    async def keep(self) -> None:
        """Renews the lease and publishes a drain, until the registration is lost: the lease ended, or the key was removed.

        Raises Rejected if another process has registered as the same broker; if the store does not answer, the next `join` raises
        it.
        """
        try:
            while True:
                pause_s = self._ttl_s / 3
                self._wake.clear()
                try:
                    await self._renew()
                    await self._publish()
                except TidelogError as error:  # also a refusal: the end of the lease decides
                    log.warning("lease renewal failed key=%s: %s; retrying", self._key, error)
                    pause_s = min(pause_s, PAUSE_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
        except LeaseLost:
            log.warning("registration lost key=%s: the lease ended or the key was removed; a new session begins", self._key)
            await self._check_id()
        finally:
            self._valid_until_s = 0.0

    async def _renew(self) -> None:
        assert self.lease is not None, "join comes first"
        asked_s = asyncio.get_running_loop().time()
        self._valid_until_s = max(self._valid_until_s, asked_s + await self._store.keep_alive(self.lease))

    async def _check_id(self) -> None:
        with contextlib.suppress(Unavailable):
            held = await self._store.get(self._key)
            if held is not None and held.lease != self.lease:
                raise self._replaced(held)

    def _check_not_replaced(self, held: KeyValue) -> None:
        """Raises Rejected if a later process with this id is registered: else the two would remove each other in turn."""
        with contextlib.suppress(Corrupt):
            if self._own_sessions and decode_registration(held).registration.session not in self._own_sessions:
                raise self._replaced(held)

    def _log_replaced(self, held: KeyValue) -> None:
        """Logs which registration is replaced: most often that of this broker before its restart, else that of a live process,
        which ends."""
        other, own = _registered(held), self._registration
        if other is None or other.session in self._own_sessions:
            return
        if (other.http_address, other.grpc_address) == (own.http_address, own.grpc_address):
            log.info("registration replaced key=%s: its %s did not end in order", self._key, _description(other))
        else:
            log.warning(
                "registration replaced key=%s: another process has this id, %s; it stops; give each broker its own id "
                "(--broker-id)",
                self._key,
                _description(other),
            )

    def _replaced(self, held: KeyValue) -> Rejected:
        by = _registered(held)
        return Rejected(
            f"another process has registered as {self._key}" + (f": {_description(by)}" if by is not None else ""),
            hint="Give each broker an id of its own (--broker-id), or stop the other one.",
        )

    async def _publish(self) -> None:
        """Checks that the registration still exists, and writes into it what others have to know."""
        held = await self._store.get(self._key)
        if held is None or held.lease != self.lease:
            raise LeaseLost
        try:
            registration = decode_registration(held).registration
        except Corrupt as error:  # other brokers no longer see this broker
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
            if not result.succeeded:  # an operator changed it meanwhile
                raise Unavailable(f"{self._key} has changed meanwhile")

    def drain(self) -> None:
        """Asks the controller to appoint this broker to no more partitions, and to move those it leads."""
        self._draining = True
        self._wake.set()

    def publish_unwritable(self, bytes_min: int) -> None:
        """Publishes that objects of this size cannot be written to the bucket; 0: that they can."""
        if bool(bytes_min) != bool(self._unwritable_bytes):
            self._unwritable_bytes = bytes_min
            self._wake.set()

    def wake(self) -> None:
        """Checks at once whether the registration still exists, after a watch reported its end."""
        self._wake.set()

    async def leave(self) -> None:
        """Ends the registration at once, so that others need not wait for the end of the lease. If that fails, they wait."""
        if self.lease is None:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._store.revoke_lease(self.lease)
        except (TidelogError, TimeoutError) as error:
            log.warning("deregistration failed key=%s: %s; the lease ends by itself", self._key, str(error) or "no answer in time")


def _registered(held: KeyValue) -> BrokerRegistration | None:
    """Returns the registration; None if it cannot be read."""
    try:
        return decode_registration(held).registration
    except Corrupt:
        return None


def _description(other: BrokerRegistration) -> str:
    return f"session {other.session}, at http {other.http_address or '-'}, grpc {other.grpc_address or '-'}"
