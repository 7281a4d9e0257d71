"""Declares what a listener may ask of the broker; broker.py implements it, and tests bring a smaller implementation.

A listener calls `broker.cluster_log` for requests of clients, and `broker.local_log` for requests that another broker has forwarded
(gateway/routing/log_service.py). Invariant: a listener holds no state of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from gateway.cluster.store_checks import CheckedStores
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

if TYPE_CHECKING:  # so that this module loads none of them
    from gateway.access.admin import AccessAdmin
    from gateway.access.guard import AccessGuard
    from gateway.groups.admin.admin import GroupAdmin
    from gateway.groups.admin.lag_history import LagHistory
    from gateway.groups.coordinator import GroupCoordinator
    from gateway.groups.router import GroupRouter
    from gateway.telemetry.registry import MetricsRegistry
    from gateway.telemetry.request_context import Tracer
    from gateway.topics.usage.service import UsageService


class BrokerApi(Protocol):
    """The broker as listeners see it: its names, its logs, its view of the cluster, and the services that all listeners share.

    The view (leaders, brokers, topics) comes from this broker's watches of the metadata store and may lag behind the store.
    """

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
        """Returns whether requests can succeed: False while the broker starts or stops, and without a session."""
        ...

    @property
    def bucket_trouble(self) -> StoreTrouble | None:
        """Returns why the bucket takes no writes; None while it takes them."""
        ...

    @property
    def settings(self) -> GatewaySettings: ...
    @property
    def group_settings(self) -> GroupSettings: ...

    @property
    def log(self) -> SessionLog:
        """Returns the log of the present session. Raises Unavailable while there is none."""
        ...

    @property
    def local_log(self) -> LocalLog:
        """Returns the log of the partitions that this broker leads, for requests that another broker has forwarded."""
        ...

    @property
    def cluster_log(self) -> LogService:
        """Returns the log of the whole cluster, for requests of clients."""
        ...

    def leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        """Returns the registered broker that leads the partition; None if this broker knows of no such leader."""
        ...

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Returns the highest leader epoch of the partition that this broker knows; -1 if it knows none."""
        ...

    def last_leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        """Returns the last broker that led the partition, registered or not; None if this broker does not know it."""
        ...

    def registrations(self) -> Iterable[BrokerRegistration]:
        """Returns the registrations of all brokers that this broker knows."""
        ...

    def registration(self, broker_id: str) -> BrokerRegistration | None:
        """Returns the registration of a broker; None if it is not registered."""
        ...

    def brokers(self) -> list[BrokerDescription]:
        """Returns descriptions of all registered brokers, in the order of their ids."""
        ...

    @property
    def metadata_age_ms(self) -> int:
        """Returns the milliseconds since the last answer of the metadata store."""
        ...

    @property
    def metadata_trouble(self) -> StoreTrouble | None:
        """Returns why the metadata cannot be changed; None while the metadata store answers."""
        ...

    @property
    def refused(self) -> Mapping[TopicPartition, Corrupt]:
        """Returns the partitions that this broker was appointed to lead and does not serve, each with the damage that was found."""
        ...

    @property
    def groups(self) -> GroupRouter:
        """Returns the consumer groups of the whole cluster, for calls of clients."""
        ...

    @property
    def coordinated_groups(self) -> GroupCoordinator:
        """Returns the consumer groups that this broker coordinates, for calls that another broker has forwarded."""
        ...

    @property
    def group_operations(self) -> GroupAdmin:
        """Returns the operators' calls about the consumer groups of the whole cluster."""
        ...

    @property
    def lag_history(self) -> LagHistory:
        """Returns the lag of consumer groups over the last hour."""
        ...

    @property
    def guard(self) -> AccessGuard | None:
        """Authenticates and authorizes each call; None if authentication is off."""
        ...

    @property
    def access(self) -> AccessAdmin:
        """Returns the operators' calls about API keys, ACLs and quotas."""
        ...

    @property
    def usage(self) -> UsageService:
        """Returns what measures how the cluster uses its bucket, and what that costs."""
        ...

    @property
    def metrics(self) -> MetricsRegistry:
        """Returns the metrics of this broker."""
        ...

    @property
    def tracing(self) -> Tracer | None:
        """Begins traces of calls; None if tracing is off."""
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
        """Creates a topic and waits until its partitions have leaders, for topic_ready_timeout_ms at most.

        A produce right after it succeeds therefore. Raises AlreadyExists, InvalidArgument and other errors of the registry.
        """
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

    async def check_stores(self) -> CheckedStores:
        """Checks the bucket and the metadata store, or returns the checks of a few seconds ago."""
        ...

    async def drain(self, broker_id: str, *, draining: bool, validate_only: bool = False) -> DrainState:
        """Makes any broker of the cluster hand over the partitions that it leads, or (`draining` False) accept partitions again."""
        ...
