"""Assembles the consumer groups of a broker: the coordinator lookup, the groups coordinated here, and the route to all others.

  listeners ─▶ routed (members) · operations (operators) ─┬─▶ coordinated here: coordinator.py
                                                          └─▶ one hop to the coordinator

coordinator_lookup.py follows the brokers of the cluster; when coordinators change, groups of other brokers are given up.
coordinator_lease.py proves that this view is current before a member is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.groups.admin.admin import GroupAdmin
from gateway.groups.admin.lag_history import LagHistory
from gateway.groups.admin.local_admin import LocalGroupAdmin
from gateway.groups.admin.topic_readers import TopicReaders
from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.coordinator_lease import CoordinatorLease, SeenRegistrations
from gateway.groups.coordinator_lookup import CoordinatorLookup
from gateway.groups.group_topics import topics_of
from gateway.groups.maintenance import GroupMaintenance
from gateway.groups.member_rights import MemberRights
from gateway.groups.router import GroupRouter, asked_what_it_sees
from gateway.routing.log_service import LogService
from gateway.routing.peer_channels import PeerChannels
from gateway.telemetry.registry import MetricsRegistry
from gateway.topics.names import LOOKUP_S
from metadata.cluster.broker_registry import read_revisions
from metadata.groups.model import MemberId
from metadata.groups.settings import GroupSettings
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from metadata.topics.cache import TopicCache


class GroupService:
    """Owns the parts of a broker that serve consumer groups. Its owner runs `run()` as a task."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout,
        settings: GroupSettings,
        seen: SeenRegistrations,
        topics: TopicCache,
        log: LogService,
        peers: PeerChannels,
        metrics: MetricsRegistry,
        *,
        broker_id: str,
        session: Callable[[], int | None],
        is_stopping: Callable[[], bool],
        now_ms: Callable[[], int],
        expires_ms: Callable[[], int] | None = None,
        new_member_id: Callable[[str], MemberId],
        rights: MemberRights | None = None,
    ) -> None:
        """`log` serves the whole cluster. `session` returns this broker's present session, if it has one. `now_ms` is the wall
        clock; `expires_ms` as in GroupMaintenance. `rights` is None without authentication."""
        coordinators = CoordinatorLookup(seen, broker_id=broker_id, session=session, is_stopping=is_stopping)
        self.view = CoordinatorLease(
            seen,
            broker_id=broker_id,
            registered=lambda: read_revisions(store, layout),
            ask=lambda broker: asked_what_it_sees(peers, broker),
            is_needed=lambda: len(self.coordinated) > 0,
        )
        self.coordinated = GroupCoordinator(
            store,
            layout,
            settings,
            session=coordinators.session,
            coordinates=coordinators.here,
            verify=self.view.verify,
            is_proven=lambda: self.view.is_fresh,
            now_ms=now_ms,
            new_member_id=new_member_id,
            topics=topics_of(topics),
            hear_of=lambda partitions: topics.hear_of(partitions, timeout_s=LOOKUP_S),
            rights=rights,
        )
        self.routed = GroupRouter(self.coordinated, coordinators, topics, peers, self.view)
        self._upkeep = GroupMaintenance(
            store,
            layout,
            self.coordinated,
            log,
            topics,
            settings,
            coordinates=lambda name: coordinators.id_of(name) == broker_id,
            now_ms=now_ms,
            expires_ms=expires_ms,
        )
        self._upkeep.register(metrics)
        here = LocalGroupAdmin(self.coordinated, log, topics, broker_id=broker_id, now_ms=now_ms)
        self.operations = GroupAdmin(store, layout, self.routed, here, TopicReaders(store, layout, log, topics))
        self.figures = self._upkeep.figures
        self.lag_history = LagHistory(
            self.figures,
            self.operations.describe,
            peers,
            lambda: seen.brokers.values(),
            broker_id=broker_id,
            interval_ms=settings.group_metrics_interval_ms,
            now_ms=now_ms,
        )
        self.view.subscribe(self.coordinated.proven)
        coordinators.subscribe(self.coordinated.brokers_changed)
        coordinators.subscribe(self._upkeep.brokers_changed)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.view.run(), name="proofs of the view")
            tasks.create_task(self.coordinated.run(), name="coordinator of groups")
            tasks.create_task(self._upkeep.run(), name="upkeep of groups")
