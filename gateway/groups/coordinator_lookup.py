"""Which broker coordinates a group, as this broker sees the cluster now: nobody is asked, and all who see the same say the same.

    live brokers that don't drain (all drain: all of them) ─▶ rendezvous hashing of the group's name ─▶ one of them

Two brokers that see different clusters for a moment may both take a group for theirs: each writes its record before it serves it,
so only the later one writes (coordinator.py). Invariant: a broker without a session coordinates nothing.
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

# Groups whose coordinator is looked up, and not reckoned anew, until the brokers change.
REMEMBERED_MAX: Final = 100_000


class SeenBrokers(Protocol):
    """What metadata/cluster/broker_registry.py's BrokerCache tells."""

    @property
    def brokers(self) -> Mapping[str, BrokerRegistration]: ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]: ...


class CoordinatorLookup:
    def __init__(
        self,
        seen: SeenBrokers,
        *,
        broker_id: str,
        session: Callable[[], int | None],
        is_stopping: Callable[[], bool],
    ) -> None:
        """`session`: the present one of this broker; None while it has none."""
        self._seen = seen
        self._broker_id = broker_id
        self._session = session
        self._is_stopping = is_stopping
        self._subscribers: list[Callable[[], None]] = []
        self._candidates: tuple[str, ...] = ()
        self._id_of = Rendezvous(()).highest
        self._brokers_changed()
        seen.subscribe(self._brokers_changed)

    def of(self, name: str) -> BrokerRegistration:
        """Raises InvalidGroupName, NoCoordinator."""
        found = self._seen.brokers.get(self.id_of(check_group_name(name)) or "")
        if found is None:
            raise NoCoordinator(
                f"nobody coordinates group {name} yet: no broker is registered, as far as this one knows",
                hint="Retry with back-off. Where it lasts: `tidelog cluster health`.",
            )
        return found

    def elsewhere(self, name: str) -> BrokerRegistration | None:
        """The other broker that coordinates it; None where this one does.

        Raises InvalidGroupName; NoCoordinator or Stopping where it is this one's, which has no session.
        """
        found = self.of(name)
        if found.broker_id != self._broker_id:
            return found
        self.session()
        return None

    def here(self, name: str) -> bool:
        return self._session() is not None and self.id_of(name) == self._broker_id

    def id_of(self, name: str) -> str | None:
        """Of the broker; None where none is registered."""
        return self._id_of(name)

    def session(self) -> SessionId:
        """In whose name this broker writes groups. NoCoordinator or Stopping while there is none."""
        session = self._session()
        if session is not None:
            return SessionId(session)
        if self._is_stopping():
            raise Stopping("the broker is shutting down")
        raise NoCoordinator("the broker that coordinates the group has no session yet; it is opening one")

    def named(self, name: str, error: NotCoordinator) -> NotCoordinator:
        """The error with who coordinates the group, where that is another broker, as far as is known here."""
        found = self._seen.brokers.get(self.id_of(name) or "")
        if found is not None and found.broker_id != self._broker_id:
            error.details |= {
                "broker_id": found.broker_id,
                "http_address": found.http_address,
                "grpc_address": found.grpc_address,
            }
        return error

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Calls it when other brokers than before may coordinate groups. It must not block, nor raise."""
        self._subscribers.append(changed)

    def _brokers_changed(self) -> None:
        brokers = self._seen.brokers
        staying = [broker_id for broker_id, broker in brokers.items() if not broker.draining]
        candidates = tuple(sorted(staying or brokers))
        if candidates == self._candidates:
            return
        self._candidates = candidates
        self._id_of = lru_cache(REMEMBERED_MAX)(Rendezvous(candidates).highest)
        for changed in tuple(self._subscribers):
            changed()
