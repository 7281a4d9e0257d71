"""Answers probes for liveness, readiness and startup, with what is wrong with a broker and what to do. Pure.

Invariant: a broker that serves is ready, whatever else its answer reports. One damaged partition, or an outage of the bucket or of
etcd that all brokers share, must not remove a broker from a load balancer. Liveness depends on no other service.

One exception: with authentication on, a broker refuses clients if etcd has not confirmed its API keys and ACLs for
access_max_age_ms, and is then not ready.

An unavailable bucket (segments/object_store/health.py) leaves brokers ready. If all brokers have lost it, readers are still served
from memory. If only this broker has lost it, another broker ends its session (cluster/bucket_isolation.py), which makes it unready.
The answer, tidelog_bucket_state and an alert report the outage.
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

# Most refused partitions in one answer.
REFUSED_MAX: Final = 100


class ProbedBroker(Protocol):
    """The part of a broker that probes read."""

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
    """A partition that a broker was appointed to lead and does not serve, since its stored data is damaged."""

    topic: str
    partition: int
    reason: str
    hint: str


class HealthAnswer(Struct, omit_defaults=True):
    """The JSON body of an answer to a probe; fields at their defaults are left out."""

    status: Annotated[str, Meta(description="ok, or the problem in two words.")]
    reason: Annotated[str, Meta(description="Why it is not ok.")] = ""
    hint: Annotated[str, Meta(description="What to do.")] = ""
    refused_partitions: Annotated[
        tuple[RefusedPartition, ...],
        Meta(description="Partitions that this broker should lead and does not serve, since they are damaged; at most 100."),
    ] = ()


class Probed(NamedTuple):
    """The result of a probe: `is_well` decides the HTTP or gRPC status, `answer` explains it."""

    is_well: bool
    answer: HealthAnswer


WELL: Final = Probed(True, HealthAnswer("ok"))


def readiness(broker: ProbedBroker) -> Probed:
    """Answers whether requests can succeed: a session exists, the broker is not stopping, and its API keys and ACLs are current."""
    if not broker.serving:
        return Probed(False, _why_not_serving(broker))
    stale = broker.guard.cache.stale_error() if broker.guard is not None else None
    if stale is not None:
        return Probed(False, HealthAnswer(status="no access", reason=stale.message, hint=stale.hint))
    trouble = _trouble(broker)
    return Probed(True, trouble) if trouble is not None else WELL


def startup(broker: ProbedBroker) -> Probed:
    """Answers whether the first session leads its partitions."""
    return WELL if broker.started else Probed(False, _STARTING)


_STARTING: Final = HealthAnswer(
    status="starting",
    reason="the broker opens its first session on the bucket and reads the segments of earlier sessions",
    hint="Wait. If this takes minutes, read the broker's log and run: tidelog doctor",
)


def _why_not_serving(broker: ProbedBroker) -> HealthAnswer:
    try:
        _ = broker.log
    except TidelogError as error:
        if not broker.started and error.code != Stopping.code:
            return _STARTING
        trouble = None if error.code == Stopping.code else broker.bucket_trouble or broker.metadata_trouble
        if trouble is not None:  # this keeps the broker from opening a session
            return HealthAnswer(status="not serving", reason=f"{error.message}; {trouble.message}", hint=trouble.hint)
        return HealthAnswer(status="not serving", reason=error.message, hint=error.hint)
    return HealthAnswer(status="not serving", reason="the broker is shutting down", hint=Stopping.default_hint)


def _trouble(broker: ProbedBroker) -> HealthAnswer | None:
    """Returns the worst problem of a broker that serves, with all damaged partitions; None if there is no problem."""
    refused = tuple(_refused(broker, partition, error) for partition, error in islice(sorted(broker.refused.items()), REFUSED_MAX))
    for status, trouble in (("no writes", broker.bucket_trouble), ("no changes", broker.metadata_trouble)):
        if trouble is not None:
            return HealthAnswer(status=status, reason=trouble.message, hint=trouble.hint, refused_partitions=refused)
    if not refused:
        return None
    return HealthAnswer(
        status="damaged partitions",
        reason=f"{len(broker.refused)} partitions are refused, since their stored data is damaged; the others are served",
        hint="Restore the named objects from a backup, then restart this broker.",
        refused_partitions=refused,
    )


def _refused(broker: ProbedBroker, partition: TopicPartition, error: Corrupt) -> RefusedPartition:
    try:
        topic = broker.topic_cache.by_id(partition.topic_id).name
    except TidelogError:  # deleted a moment ago
        topic = partition.topic_id
    reason = error.message.replace(partition.topic_id, topic)
    return RefusedPartition(topic=topic, partition=partition.partition, reason=reason, hint=error.hint)
