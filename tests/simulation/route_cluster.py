"""The brokers of a world of routes: those of a log world (cluster.py), each with its listeners and its links to the others."""

from __future__ import annotations

import random

from segments.settings import SegmentSettings
from tests.kit.faulty_store import Faults
from tests.simulation.broker_process import BrokerProcess
from tests.simulation.cluster import Cluster
from tests.simulation.routed_broker import AccessTerms, RoutedBroker


class RouteCluster(Cluster):
    # A cluster with a copy of the same metadata, whose registrations name brokers of this one.
    beside: RouteCluster | None = None
    # None without authentication.
    access: AccessTerms | None = None
    # Whether brokers have listeners for Kafka's clients.
    serves_kafka = False

    def _process(self, name: str, broker_id: str, weather: Faults) -> BrokerProcess:
        return RoutedBroker(
            name,
            self.site,
            broker_id=broker_id,
            rack=f"rack-{broker_id}",
            faults=weather,
            at_address=self.at_address,
            access=self.access,
            serves_kafka=self.serves_kafka,
        )

    def at_address(self, address: str) -> RoutedBroker | None:
        """Returns the process that others reach at an address; None where there never was one."""
        everywhere = [*self.routed, *(self.beside.routed if self.beside is not None else [])]
        return next((broker for broker in everywhere if broker.name == address), None)

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

    def all_lead(self) -> bool:
        """Whether the metadata name each broker that runs as the leader of some partition, and nothing is without a leader."""
        led = {state.leader_session for state, _ in self.partitions.states.values()}
        running = {broker.leadership.session for broker in self.routed if not broker.ended}
        return bool(led) and led == running

    def calm_down(self) -> None:
        super().calm_down()
        for broker in self.routed:
            broker.wire.calm_down()
            broker.lag_behind_topics(0.0)
            broker.lag_behind_access(0.0)


def segment_settings(chance: random.Random) -> SegmentSettings:
    """Of one world: so small a buffer, at times, that a broker may have no room for what it forwards."""
    return SegmentSettings(
        segment_bytes_max=chance.choice((4000, 20_000)),
        linger_ms=chance.choice((0, 20, 100)),
        puts_per_second_max=0,
        put_timeout_ms=1000,
        put_deadline_ms=3000,
        hedge_after_ms=1500,
        retry_pause_ms=20,
        retry_pause_ms_max=500,
        buffer_bytes_max=chance.choice((24_000, 40_000, 200_000)),
        index_every_segments=32,
    )
