"""Which broker coordinates a group, as one broker sees the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from gateway.groups.coordinator_lookup import CoordinatorLookup
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import InvalidGroupName, NoCoordinator, NotCoordinator, Stopping
from metadata.model import SessionId

NAMES = [f"group-{at}" for at in range(300)]


class Seen:
    """What one broker sees of the others."""

    def __init__(self, *broker_ids: str) -> None:
        self.brokers: Mapping[str, BrokerRegistration] = {}
        self._changed: list[Callable[[], None]] = []
        self.see(*broker_ids)

    def see(self, *broker_ids: str, draining: str = "", rack: str = "") -> None:
        self.brokers = {
            broker_id: BrokerRegistration(
                broker_id=broker_id,
                session=SessionId(1),
                grpc_address=f"{broker_id}:9090",
                draining=broker_id in draining,
                rack=rack,
            )
            for broker_id in broker_ids
        }
        for changed in self._changed:
            changed()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._changed.append(changed)
        return lambda: self._changed.remove(changed)


class OneBroker:
    def __init__(self, seen: Seen) -> None:
        self.session: int | None = 1
        self.is_stopping = False
        self.coordinators = CoordinatorLookup(
            seen, broker_id="b1", session=lambda: self.session, is_stopping=lambda: self.is_stopping
        )

    def mine(self) -> set[str]:
        return {name for name in NAMES if self.coordinators.here(name)}


def test_groups_are_shared_by_brokers_that_do_not_drain_and_by_all_where_all_do() -> None:
    seen = Seen("b1", "b2", "b3")
    coordinators = OneBroker(seen).coordinators
    shares = Counter(coordinators.of(name).broker_id for name in NAMES)
    assert sorted(shares) == ["b1", "b2", "b3"]
    seen.see("b1", "b2", "b3", draining="b1")
    moved = {name: coordinators.of(name).broker_id for name in NAMES}
    assert Counter(moved.values()).keys() == {"b2", "b3"}
    seen.see("b1", "b2", "b3", draining="b1 b2 b3")
    assert Counter(coordinators.of(name).broker_id for name in NAMES) == shares


def test_only_groups_of_a_broker_that_goes_move() -> None:
    seen = Seen("b1", "b2", "b3")
    broker = OneBroker(seen)
    before = broker.mine()
    seen.see("b1", "b2")
    assert broker.mine() > before
    seen.see("b1", "b2", "b3")
    assert broker.mine() == before


def test_subscribers_are_notified_only_when_another_broker_may_coordinate() -> None:
    seen = Seen("b1", "b2")
    reported: list[int] = []
    OneBroker(seen).coordinators.subscribe(lambda: reported.append(len(seen.brokers)))
    seen.see("b1", "b2", rack="a")
    assert reported == []
    seen.see("b1", "b2", draining="b2")
    seen.see("b1")
    assert reported == [2]


def test_without_brokers_or_a_session_no_broker_coordinates_a_group() -> None:
    seen = Seen()
    broker = OneBroker(seen)
    with pytest.raises(NoCoordinator):
        broker.coordinators.of("billing")
    seen.see("b1")
    assert broker.coordinators.elsewhere("billing") is None
    broker.session = None
    assert broker.mine() == set()
    with pytest.raises(NoCoordinator):
        broker.coordinators.elsewhere("billing")
    broker.is_stopping = True
    with pytest.raises(Stopping):
        broker.coordinators.elsewhere("billing")
    with pytest.raises(InvalidGroupName):
        broker.coordinators.of("a\tb")


def test_an_error_names_the_coordinator_unless_it_is_this_broker_itself() -> None:
    seen = Seen("b1", "b2")
    coordinators = OneBroker(seen).coordinators
    for name in NAMES[:20]:
        error = coordinators.named(name, NotCoordinator("no"))
        assert error.details.get("broker_id") == (None if coordinators.here(name) else "b2")
