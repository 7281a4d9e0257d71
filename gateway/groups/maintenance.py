"""Maintains the groups that this broker coordinates: expiry, and figures for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.groups.admin.lag import KnownTopics
from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.expiry import GroupExpiry
from gateway.groups.metrics import GroupMetrics, by_partition, by_topic
from gateway.groups.scan import GroupScanner
from gateway.routing.log_service import LogService
from gateway.telemetry.registry import MetricsRegistry
from metadata.groups.settings import GroupSettings
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout


class GroupMaintenance:
    """Scans the broker's groups for expiry and metrics. Its owner runs `run()` as a task, and calls `brokers_changed` when groups
    may have moved here."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout,
        coordinator: GroupCoordinator,
        log: LogService,
        topics: KnownTopics,
        settings: GroupSettings,
        *,
        coordinates: Callable[[str], bool],
        now_ms: Callable[[], int],
        expires_ms: Callable[[], int] | None = None,
    ) -> None:
        """`log` serves the whole cluster. `coordinates` returns whether a group is this broker's, with or without a session.
        `expires_ms` is the time by which offsets and groups expire; the default is `now_ms` (segments/object_store/store_clock.py).
        """
        self._coordinator = coordinator
        self._expiry = GroupExpiry(
            store,
            layout,
            coordinator,
            topics,
            retention_ms=settings.offsets_retention_ms,
            now_ms=expires_ms or now_ms,
        )
        self.figures = GroupMetrics(
            store,
            layout,
            coordinator,
            log,
            topics,
            coordinates=coordinates,
            interval_s=settings.group_metrics_interval_ms / 1000,
            now_ms=now_ms,
        )
        self._scan = GroupScanner(
            store,
            layout,
            coordinator.known_offsets,
            (self.figures.visit, self._expiry.visit),
            interval_s=settings.group_scan_interval_ms / 1000,
            coordinates=coordinates,
            now_ms=now_ms,
        )
        self.brokers_changed = self._scan.soon

    def register(self, metrics: MetricsRegistry) -> None:
        metrics.register(lambda: (by_topic(self.figures.snapshot), self._coordinator.counts, self._expiry.counts))
        metrics.register(lambda: (by_partition(self.figures.snapshot),), detail=True)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scan.run(), name="scan of groups")
            tasks.create_task(self.figures.run(), name="metrics of groups")
