"""The brokers of a world of routes: those of a log world (cluster.py), each with its listeners and its links to the others."""

from __future__ import annotations

import random

from tests.faulty_store import Faults
from tests.simulation.broker_process import BrokerProcess
from tests.simulation.cluster import Cluster
from tests.simulation.routed_broker import RoutedBroker


class RouteCluster(Cluster):
    def _process(self, name: str, broker_id: str, weather: Faults) -> BrokerProcess:
        return RoutedBroker(
            name, self.site, broker_id=broker_id, rack=f"rack-{broker_id}", faults=weather, at_address=self._at_address
        )

    def _at_address(self, address: str) -> RoutedBroker | None:
        return next((broker for broker in self.routed if broker.name == address), None)

    @property
    def routed(self) -> list[RoutedBroker]:
        """All processes that there ever were."""
        return [broker for broker in self.processes if isinstance(broker, RoutedBroker)]

    def any_routed(self) -> RoutedBroker:
        """One that runs under its id now."""
        broker = self.any()
        assert isinstance(broker, RoutedBroker)
        return broker

    def balanced_routed(self, chance: random.Random) -> RoutedBroker:
        """The broker that a load balancer takes: any that runs."""
        return chance.choice([broker for broker in self.routed if not broker.ended] or self.routed)

    def calm_down(self) -> None:
        super().calm_down()
        for broker in self.routed:
            broker.wire.calm_down()
            broker.lag_behind_topics(0.0)
