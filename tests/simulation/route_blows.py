"""What befalls a world of routes: views that lag, links between brokers that fail, growth, and some of the blows of log worlds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from tests.simulation.blows import Blow, Blows
from tests.simulation.route_cluster import RouteCluster
from tests.simulation.route_load import RouteLoad

TOPIC_LAGS_S = (0.0, 0.05, 0.5, 2.0)
ACCESS_LAGS_S = (0.0, 0.05, 0.3, 2.0)


class RouteBlows(Blows):
    def __init__(self, cluster: RouteCluster, load: RouteLoad, chance: random.Random, note: Callable[[str], None]) -> None:
        super().__init__(cluster, load, chance, note)
        self._routed = cluster
        self._route_load = load

    def _frequencies(self) -> Sequence[tuple[Blow, int]]:
        return [
            *(self._of_access() if self._routed.access is not None else ()),
            (self._load.grow, 6),
            (self._grows_under_way, 5),
            (self._load.make_again, 2),
            (self._topics_lag, 6),
            (self._links_lose, 3),
            (self._links_are_slow, 3),
            (self._links_are_cut, 2),
            (self._metadata_slow, 2),
            (self._lease_ends_early, 1),
            (self._moves_to_and_fro, 2),
            (self._moves_under_load, 2),
            (self._kill, 1),
            (self._freeze, 1),
            (self._drain_by_command, 1),
            (self._bucket_slow, 2),
        ]

    def _of_access(self) -> Sequence[tuple[Blow, int]]:
        return [
            (self._access_lags, 8),
            (self._etcd_out_of_reach, 5),
            (self._clock_strays, 2),
            (self._metadata_restarts, 1),
            (self._history_compacted, 1),
        ]

    async def _access_lags(self) -> None:
        """A broker hears of API keys and ACLs later than before, or at once again."""
        self._routed.any_routed().lag_behind_access(self._chance.choice(ACCESS_LAGS_S))

    async def _etcd_out_of_reach(self) -> None:
        """Of one broker. Its bucket and its clients are there as before."""
        cut_off = self._routed.any_routed()
        cut_off.metadata.cut()
        await self._seconds(0.5, 1.5, 3.0)
        cut_off.metadata.mend()

    async def _clock_strays(self) -> None:
        """By more than brokers may differ, or less, and comes back."""
        strays, by_ms = self._routed.any_routed(), self._chance.choice((-150_000, -20_000, 20_000, 150_000))
        strays.clock_skew_ms += by_ms
        await self._seconds(0.5, 2.0)
        strays.clock_skew_ms -= by_ms

    async def _topics_lag(self) -> None:
        """A broker hears of topics later than before, or at once again."""
        self._routed.any_routed().lag_behind_topics(self._chance.choice(TOPIC_LAGS_S))

    async def _grows_under_way(self) -> None:
        """A topic grows while earlier requests are on their way between brokers, and are repeated through others."""
        with self._load.in_a_hurry():
            for _ in range(self._chance.randint(1, 3)):
                wire = self._routed.any_routed().wire
                wire.latency_s = self._chance.choice((0.3, 0.7, 1.5))
                self._route_load.burst(8)
                await asyncio.sleep(self._chance.uniform(0.2, 0.6))
                await self._load.grow()
                await asyncio.sleep(self._chance.uniform(0.3, 1.0))
                wire.latency_s = 0.002

    async def _links_lose(self) -> None:
        wire = self._routed.any_routed().wire
        wire.lost = self._chance.choice((0.1, 0.4))
        await self._seconds(0.5, 2.0, 4.0)
        wire.lost = 0.0

    async def _links_are_slow(self) -> None:
        wire = self._routed.any_routed().wire
        wire.latency_s = self._chance.choice((0.1, 0.5, 3.0))
        await self._seconds(0.5, 2.0, 4.0)
        wire.latency_s = 0.002

    async def _links_are_cut(self) -> None:
        wire = self._routed.any_routed().wire
        wire.cut = True
        await self._seconds(0.3, 1.0, 3.0)
        wire.cut = False
