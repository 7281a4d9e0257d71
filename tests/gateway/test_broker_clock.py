"""What of a broker goes by the clock that is compared with the bucket's."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.broker.broker import Broker
from gateway.settings import BrokerSettings
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from segments.object_store.instrumented import InstrumentedObjectStore
from segments.object_store.memory import MemoryObjectStore
from segments.object_store.store_clock import StoreClock


def test_a_broker_forgets_producers_and_groups_and_dates_what_it_writes_by_the_clock_that_is_compared(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = SqliteStore(tmp_path / "metadata.sqlite")
        clock = StoreClock(lambda: 7)
        settings = BrokerSettings(data_dir=tmp_path, http="127.0.0.1:0", grpc="127.0.0.1:0")
        broker = Broker(settings, InstrumentedObjectStore(MemoryObjectStore()), metadata, KeyLayout(), cluster_id="c", clock=clock)
        leadership, groups = broker._leadership, broker._groups
        assert (leadership._now_ms, leadership._expires_ms) == (clock.stamp_ms, clock.now_ms)
        assert (groups._upkeep._expiry._now_ms, groups.coordinated._now_ms) == (clock.now_ms, clock.stamp_ms)
        await metadata.close()

    asyncio.run(main())
