"""What the doors (gRPC, HTTP) need of the broker, and no more; broker.py is it, tests bring a smaller one.

Invariant: a listener holds no state of the log. It uses `broker.cluster_log`, or `broker.local_log` for what another broker
forwards (gateway/routing/log_service.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from gateway.cluster.view import BrokerDescription, DrainState
from gateway.routing.local_log import LocalLog
from gateway.routing.log_service import LogService
from gateway.settings import GatewaySettings
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.cluster.id_allocation import ProducerIds
from metadata.errors import Corrupt
from metadata.groups.settings import GroupSettings
from metadata.model import TopicId, TopicPartition
from metadata.topics.cache import TopicCache
from metadata.topics.registry import TopicRegistry
from metadata.topics.settings import SettingChange
from metadata.topics.topic import NO_REPLICATION_FACTOR, Topic
from segments.log.session_log import SessionLog
from segments.object_store.health_tracking import StoreTrouble

if TYPE_CHECKING:  # they ask what stands below
    from gateway.access.admin import AccessAdmin
    from gateway.access.guard import AccessGuard
    from gateway.groups.admin.admin import GroupAdmin
    from gateway.groups.coordinator import GroupCoordinator
    from gateway.groups.router import GroupRouter
    from gateway.telemetry.registry import MetricsRegistry
    from gateway.telemetry.request_context import Tracer


class BrokerApi(Protocol):
    @property
    def cluster_id(self) -> str: ...
    @property
    def broker_id(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def bucket_url(self) -> str: ...
    @property
    def http_address(self) -> str: ...
    @property
    def grpc_address(self) -> str: ...
    @property
    def session(self) -> int | None: ...
    @property
    def started(self) -> bool: ...

    @property
    def serving(self) -> bool:
        """Whether requests can succeed: False while it starts or stops, and without a session."""
        ...

    @property
    def bucket_trouble(self) -> StoreTrouble | None:
        """Why the bucket takes no writes, while it takes none."""
        ...

    @property
    def settings(self) -> GatewaySettings: ...
    @property
    def group_settings(self) -> GroupSettings: ...

    @property
    def log(self) -> SessionLog:
        """The log of the present session; Unavailable while there is none."""
        ...

    @property
    def local_log(self) -> LocalLog:
        """The log of the partitions that this broker leads, for requests that another broker has forwarded."""
        ...

    @property
    def cluster_log(self) -> LogService:
        """The log of the whole cluster, for requests of clients."""
        ...

    def leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        """Who leads the partition, as far as is known here."""
        ...

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Of that leader; -1 where none is known."""
        ...

    def last_leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        """Who leads the partition, or has led it last; None where that is not known here."""
        ...

    def registrations(self) -> Iterable[BrokerRegistration]:
        """All brokers that are registered, as far as is known here."""
        ...

    def registration(self, broker_id: str) -> BrokerRegistration | None:
        """One broker; None where it is not registered."""
        ...

    def brokers(self) -> list[BrokerDescription]:
        """All that are registered, by id, as far as is known here."""
        ...

    @property
    def metadata_age_ms(self) -> int:
        """For how long nothing was heard from the metadata store."""
        ...

    @property
    def metadata_trouble(self) -> StoreTrouble | None:
        """Why nothing can be changed, while that is so."""
        ...

    @property
    def refused(self) -> Mapping[TopicPartition, Corrupt]:
        """What this broker should lead and does not serve, since it is damaged."""
        ...

    @property
    def groups(self) -> GroupRouter:
        """The consumer groups of the whole cluster, for calls of clients."""
        ...

    @property
    def coordinated_groups(self) -> GroupCoordinator:
        """Those that this broker coordinates, for calls that another has forwarded."""
        ...

    @property
    def group_operations(self) -> GroupAdmin:
        """What operators ask of the consumer groups of the whole cluster."""
        ...

    @property
    def guard(self) -> AccessGuard | None:
        """What stands before each call; None where authentication is off."""
        ...

    @property
    def access(self) -> AccessAdmin:
        """API keys, ACLs and quotas, as operators ask for them."""
        ...

    @property
    def metrics(self) -> MetricsRegistry:
        """What this broker tells Prometheus."""
        ...

    @property
    def tracing(self) -> Tracer | None:
        """Where calls are traced."""
        ...

    @property
    def topics(self) -> TopicRegistry: ...
    @property
    def topic_cache(self) -> TopicCache: ...
    @property
    def producer_ids(self) -> ProducerIds: ...

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        settings: Mapping[str, str] | None = None,
        *,
        replication_factor: int = NO_REPLICATION_FACTOR,
        validate_only: bool = False,
    ) -> Topic:
        """Returns when this broker leads the partitions, so that a produce right after works."""
        ...

    async def alter_topic(
        self,
        name: str,
        *,
        settings: Mapping[str, SettingChange] | None = None,
        replace_settings: bool = False,
        partition_count: int | None = None,
        validate_only: bool = False,
    ) -> Topic: ...

    async def delete_topic(self, name: str, *, topic_id: TopicId | None = None, validate_only: bool = False) -> Topic: ...

    async def drain(self, broker_id: str, *, draining: bool, validate_only: bool = False) -> DrainState:
        """Asks any broker of the cluster to hand over what it leads, or (`draining` False) to take partitions again."""
        ...
