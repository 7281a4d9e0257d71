"""Liveness, readiness and the start, for probes and for people: what is wrong with a broker, and what to do. Pure.

Invariant: a broker that serves is ready, whatever else it has to tell: one bad partition, or a bucket or etcd that all brokers
share, must not take it out of a load balancer. Liveness asks nobody. One exception: with authentication on, a broker
whose API keys and ACLs etcd has not confirmed for access_max_age_ms refuses clients, so it is not ready.

So a bucket that is unavailable (segments/object_store/health.py) makes no broker unready: it is away for all, and then a load
balancer would have nobody left to send readers to, who are served from memory; or for this broker alone, and then another ends its
session (cluster/bucket_isolation.py), which does. It is told in the answer, in tidelog_bucket_state, and as an alert.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Final, NamedTuple, Protocol

from msgspec import Meta, Struct

from gateway.access.guard import AccessGuard
from metadata.errors import Corrupt, Stopping, TidelogError
from metadata.model import TopicPartition
from metadata.topics.cache import TopicCache
from segments.log.session_log import SessionLog
from segments.object_store.health_tracking import StoreTrouble

# So many refused partitions are told.
REFUSED_MAX: Final = 100


class ProbedBroker(Protocol):
    """The state of a broker that says whether it can serve."""

    @property
    def serving(self) -> bool: ...
    @property
    def started(self) -> bool: ...
    @property
    def guard(self) -> AccessGuard | None: ...
    @property
    def log(self) -> SessionLog: ...
    @property
    def bucket_trouble(self) -> StoreTrouble | None: ...
    @property
    def metadata_trouble(self) -> StoreTrouble | None: ...
    @property
    def refused(self) -> Mapping[TopicPartition, Corrupt]: ...
    @property
    def topic_cache(self) -> TopicCache: ...


class RefusedPartition(Struct):
    topic: str
    partition: int
    reason: str
    hint: str


class HealthAnswer(Struct, omit_defaults=True):
    status: Annotated[str, Meta(description="ok, or what is wrong in two words.")]
    reason: Annotated[str, Meta(description="Why it is not ok.")] = ""
    hint: Annotated[str, Meta(description="What to do.")] = ""
    refused_partitions: Annotated[
        tuple[RefusedPartition, ...],
        Meta(description="Those that this broker leads and does not serve, since they are damaged; the first hundred."),
    ] = ()


class Probed(NamedTuple):
    """What a probe is answered."""

    is_well: bool
    answer: HealthAnswer


WELL: Final = Probed(True, HealthAnswer("ok"))


def readiness(broker: ProbedBroker) -> Probed:
    """Whether requests can succeed: there is a session, the broker is not stopping, and it can tell who may do what."""
    if not broker.serving:
        return Probed(False, _why_not_serving(broker))
    stale = broker.guard.cache.why_stale() if broker.guard is not None else None
    if stale is not None:
        return Probed(False, HealthAnswer(status="no access", reason=stale.message, hint=stale.hint))
    trouble = _trouble(broker)
    return Probed(True, trouble) if trouble is not None else WELL


def startup(broker: ProbedBroker) -> Probed:
    """Whether the first session leads its partitions."""
    return WELL if broker.started else Probed(False, _STARTING)


_STARTING: Final = HealthAnswer(
    status="starting",
    reason="the broker opens its first session on the bucket, and reads what the sessions before it wrote",
    hint="Wait. Where it takes minutes, look into the broker's log, and run: tidelog doctor",
)


def _why_not_serving(broker: ProbedBroker) -> HealthAnswer:
    try:
        _ = broker.log
    except TidelogError as error:
        if not broker.started and error.code != Stopping.code:
            return _STARTING
        trouble = None if error.code == Stopping.code else broker.bucket_trouble or broker.metadata_trouble
        if trouble is not None:  # what keeps it from opening a session
            return HealthAnswer(status="not serving", reason=f"{error.message}; {trouble.message}", hint=trouble.hint)
        return HealthAnswer(status="not serving", reason=error.message, hint=error.hint)
    return HealthAnswer(status="not serving", reason="the broker is shutting down", hint=Stopping.default_hint)


def _trouble(broker: ProbedBroker) -> HealthAnswer | None:
    """What an operator should know of a broker that serves: the worst of it, and damage in any case."""
    refused = tuple(_refused(broker, partition, error) for partition, error in islice(sorted(broker.refused.items()), REFUSED_MAX))
    for status, trouble in (("no writes", broker.bucket_trouble), ("no changes", broker.metadata_trouble)):
        if trouble is not None:
            return HealthAnswer(status=status, reason=trouble.message, hint=trouble.hint, refused_partitions=refused)
    if not refused:
        return None
    return HealthAnswer(
        status="damaged partitions",
        reason=f"{len(broker.refused)} partitions are refused, since what is stored of them is damaged; the others are served",
        hint="Restore the objects that are named from a backup, then restart this broker.",
        refused_partitions=refused,
    )


def _refused(broker: ProbedBroker, partition: TopicPartition, error: Corrupt) -> RefusedPartition:
    try:
        topic = broker.topic_cache.by_id(partition.topic_id).name
    except TidelogError:  # just deleted
        topic = partition.topic_id
    reason = error.message.replace(partition.topic_id, topic)
    return RefusedPartition(topic=topic, partition=partition.partition, reason=reason, hint=error.hint)
