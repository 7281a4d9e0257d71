"""Finds the broker that coordinates a group from this broker's view; brokers with the same view agree without asking each other.

  live brokers that don't drain (all drain: all of them) ─▶ rendezvous hashing of the group's name ─▶ one of them

Two brokers with different views may both claim a group for a moment: each writes its record before it serves it, so only the later
one
writes (coordinator.py). Invariant: a broker without a session coordinates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Protocol

from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NoCoordinator, NotCoordinator, Stopping
from metadata.groups.model import check_group_name
from metadata.model import SessionId
from metadata.rendezvous import Rendezvous

# Groups whose computed coordinator is cached until the brokers change.
REMEMBERED_MAX: Final = 100_000


class SeenBrokers(Protocol):
    """Gives access to the brokers that BrokerCache holds (metadata/cluster/broker_registry.py)."""

    @property
    def brokers(self) -> Mapping[str, BrokerRegistration]: ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]: ...


class CoordinatorLookup:
    """Names the coordinator of each group, and reports when coordinators may have changed."""

    def __init__(
        self,
        seen: SeenBrokers,
        *,
        broker_id: str,
        session: Callable[[], int | None],
        is_stopping: Callable[[], bool],
    ) -> None:
        """`session` returns the present session of this broker; None without one."""
        self._seen = seen
        self._broker_id = broker_id
        self._session = session
        self._is_stopping = is_stopping
        self._subscribers: list[Callable[[], None]] = []
        self._candidates: tuple[str, ...] = ()
        # Returns the id of the broker that coordinates a group; None without a registered broker.
        self.id_of = Rendezvous(()).highest
        self._brokers_changed()
        seen.subscribe(self._brokers_changed)

    def of(self, name: str) -> BrokerRegistration:
        """Returns the broker that coordinates the group. Raises InvalidGroupName, NoCoordinator."""
        found = self._seen.brokers.get(self.id_of(check_group_name(name)) or "")
        if found is None:
            raise NoCoordinator(
                f"group {name} has no coordinator yet: this broker's view has no registered broker",
                hint="Retry with back-off. If it persists, run `tidelog cluster health`.",
            )
        return found

    def elsewhere(self, name: str) -> BrokerRegistration | None:
        """Returns the other broker that coordinates the group; None if this one does.

        Raises InvalidGroupName; NoCoordinator or Stopping if it is this broker's group, and this broker has no session.
        """
        found = self.of(name)
        if found.broker_id != self._broker_id:
            return found
        self.session()
        return None

    def here(self, name: str) -> bool:
        return self._session() is not None and self.id_of(name) == self._broker_id

    def session(self) -> SessionId:
        """Returns the session in which this broker writes groups. Raises NoCoordinator or Stopping without one."""
        session = self._session()
        if session is not None:
            return SessionId(session)
        if self._is_stopping():
            raise Stopping("the broker is shutting down")
        raise NoCoordinator("the broker that coordinates the group has no session yet; it is opening one")

    def named(self, name: str, error: NotCoordinator) -> NotCoordinator:
        """Adds the coordinator to the error's details, if this broker's view names another broker."""
        found = self._seen.brokers.get(self.id_of(name) or "")
        if found is not None and found.broker_id != self._broker_id:
            error.details |= {
                "broker_id": found.broker_id,
                "http_address": found.http_address,
                "grpc_address": found.grpc_address,
            }
        return error

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Adds a callback for changes of the brokers that may coordinate groups. It must neither block nor raise."""
        self._subscribers.append(changed)

    def _brokers_changed(self) -> None:
        brokers = self._seen.brokers
        staying = [broker_id for broker_id, broker in brokers.items() if not broker.draining]
        candidates = tuple(sorted(staying or brokers))
        if candidates == self._candidates:
            return
        self._candidates = candidates
        self.id_of = lru_cache(REMEMBERED_MAX)(Rendezvous(candidates).highest)
        for changed in tuple(self._subscribers):
            changed()
