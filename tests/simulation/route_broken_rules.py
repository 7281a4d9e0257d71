"""Rules of routing that a run breaks on purpose, to show that the checker would notice.

Each replaces one function of the real code while it is in force, as in broken_rules.py.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any
from unittest.mock import patch

from gateway.access.authorization import AuthorizedCall, Principal
from gateway.access.guard import AccessGuard
from gateway.cluster.proven_routing import ProvenRouting
from gateway.controller.appointment_log import AppointmentLog
from gateway.grpc.consume.standalone import StandaloneConsumer
from gateway.grpc.produce.appender import MessageAppender
from gateway.grpc.produce.request_decoder import AppendRequest
from gateway.http.records.stream import RecordStream
from gateway.kafka import produce as kafka_produce
from gateway.kafka.fetch_sessions import AskedPartition, FetchSession, FetchSessions
from gateway.kafka.produce import KafkaProduce
from gateway.kafka.protocol.hot_messages import PartitionData
from gateway.records import append as records_append
from gateway.records.append import AppendTarget
from gateway.records.partitioning import CheckedBatch
from gateway.routing.cluster_log import ClusterLog
from gateway.routing.forward_queue import NOT_AWAITED
from gateway.routing.forward_sender import Load, send_forwarded
from gateway.routing.forwarder import ProduceForwarder
from gateway.routing.leader_lookup import LeaderLookup
from gateway.routing.log_service import LogService, Pending, WrittenOnce
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.cluster.id_allocation import IDS_PER_SESSION, ProducerIds
from metadata.controller.appointments import Batch
from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from metadata.model import LeaderEpoch, ProducerId, Revision, TopicPartition
from metadata.store.view_proof import ViewProof
from segments.log.session_log import PendingAppend


class BrokenRouteRule(Enum):
    NOTHING = "nothing"
    # A request with an Idempotency-Key is planned without a question to the leaders of other partitions.
    OTHERS_NOT_ASKED = "others-not-asked"
    # A leader takes a new batch of a key though the batch was routed over fewer partitions than the leader knows.
    STALE_ROUTING_TAKEN = "stale-routing-taken"
    # Later batches of a partition are appended behind one of the same request that was refused.
    WRITTEN_BEHIND_REFUSED = "written-behind-refused"
    # The answers of a message that was given up settle the batches of the message that followed it.
    LATE_ANSWERS_TAKEN = "late-answers-taken"
    # A leader that has not heard yet of a partition answers the forwarding broker that there is none.
    UNHEARD_IS_UNKNOWN = "unheard-is-unknown"
    # A reader is answered that a partition does not exist where its leader has not heard of it yet.
    UNHEARD_IS_UNREADABLE = "unheard-is-unreadable"
    # Streams read the partitions that the topic had when they began.
    GROWTH_NOT_FOLLOWED = "growth-not-followed"
    # A controller appoints leaders though a controller of other metadata has written the batch of that number.
    APPOINTED_TWICE = "appointed-twice"
    # A broker relies on its view of API keys and ACLs however long etcd has not confirmed it.
    VIEW_NEVER_AGES = "view-never-ages"
    # A leader takes a forwarded append though it knows that the API key of the client was revoked.
    FORWARDED_KEY_NOT_CHECKED = "forwarded-key-not-checked"
    # Long polls and streams go on when the key or the right of their caller is taken back.
    LASTING_NOT_ENDED = "lasting-not-ended"
    # Credentials that counted once count for good.
    KEY_CHECKED_ONCE = "key-checked-once"
    # A caller has the rights that it had when it called first.
    RIGHTS_CHECKED_ONCE = "rights-checked-once"
    # A broker whose view was too old once refuses all calls from then on.
    STALE_FOR_GOOD = "stale-for-good"
    # Kafka's listener acknowledges a batch when the leader holds it in memory.
    KAFKA_ACKNOWLEDGED_EARLY = "kafka-acknowledged-early"
    # An answer within a fetch session leaves out partitions whose data changed.
    FETCH_SESSION_SKIPS = "fetch-session-skips"
    # A fetch session keeps the offsets with which it was opened.
    FETCH_SESSION_STANDS_STILL = "fetch-session-stands-still"
    # A broker gives all Kafka producers of its session one producer id.
    PRODUCER_ID_GIVEN_TWICE = "producer-id-given-twice"


@contextlib.contextmanager
def in_force(rule: BrokenRouteRule) -> Iterator[None]:
    """Breaks the rule everywhere in this process."""
    with contextlib.ExitStack() as patches:
        for target, name, broken in _patches(rule):
            patches.enter_context(patch.object(target, name, broken))
        yield


def _patches(rule: BrokenRouteRule) -> list[tuple[Any, str, Callable[..., Any]]]:
    match rule:
        case BrokenRouteRule.NOTHING:
            return []
        case BrokenRouteRule.OTHERS_NOT_ASKED:
            return [(ClusterLog, "written_once", _asked_here_alone)]
        case BrokenRouteRule.STALE_ROUTING_TAKEN:
            return [(ProvenRouting, "check", _any_routing)]
        case BrokenRouteRule.WRITTEN_BEHIND_REFUSED:
            return [(records_append, "append", _each_by_itself(records_append.append))]
        case BrokenRouteRule.LATE_ANSWERS_TAKEN:
            return [(ProduceForwarder, "_send", _send_and_take_any_answer)]
        case BrokenRouteRule.UNHEARD_IS_UNKNOWN:
            return [(MessageAppender, "_knows_more", _forwarded_knows_no_more(MessageAppender._knows_more))]
        case BrokenRouteRule.UNHEARD_IS_UNREADABLE:
            return [(LeaderLookup, "_knows_topic", _never_there)]
        case BrokenRouteRule.GROWTH_NOT_FOLLOWED:
            return [(RecordStream, "_follow_topic", _not_followed), (StandaloneConsumer, "topic_changed", _not_followed)]
        case BrokenRouteRule.APPOINTED_TWICE:
            return [(AppointmentLog, "_batches_after", _none_found), (AppointmentLog, "_create", _as_if_created)]
        case BrokenRouteRule.VIEW_NEVER_AGES:
            return [(ViewProof, "stale_error", _never_stale)]
        case BrokenRouteRule.FORWARDED_KEY_NOT_CHECKED:
            return [(AccessGuard, "check_forwarded_key", _any_key)]
        case BrokenRouteRule.LASTING_NOT_ENDED:
            return [(AccessGuard, "while_permitted", _as_long_as_it_likes)]
        case BrokenRouteRule.KEY_CHECKED_ONCE:
            return [(Principal, "check_counts", Principal.check_current)]
        case BrokenRouteRule.RIGHTS_CHECKED_ONCE:
            return [(Principal, "may", _may_as_at_first(Principal.may))]
        case BrokenRouteRule.STALE_FOR_GOOD:
            return [(ViewProof, "stale_error", _stale_for_good(ViewProof.stale_error))]
        case BrokenRouteRule.KAFKA_ACKNOWLEDGED_EARLY:
            return [(KafkaProduce, "_await_segments", _not_followed), (kafka_produce, "_outcome", _as_if_committed)]
        case BrokenRouteRule.FETCH_SESSION_SKIPS:
            return [(FetchSession, "changed", _errors_alone(FetchSession.changed))]
        case BrokenRouteRule.FETCH_SESSION_STANDS_STILL:
            return [(FetchSessions, "_update", _added_alone(FetchSessions._update))]
        case BrokenRouteRule.PRODUCER_ID_GIVEN_TWICE:
            return [(ProducerIds, "next", _first_of_session)]


async def _asked_here_alone(
    self: ClusterLog, partitions: Sequence[TopicPartition], producer_id: ProducerId, *, topic_revision: Revision
) -> WrittenOnce:
    return WrittenOnce(self.written_here(partitions, producer_id), topic_revision)


def _any_routing(self: ProvenRouting, partition: TopicPartition, leader_epoch: LeaderEpoch, partition_count: int) -> None:
    return


def _each_by_itself(append: Callable[..., list[Pending | TidelogError]]) -> Callable[..., list[Pending | TidelogError]]:
    def broken(log: LogService, target: AppendTarget, batches: Sequence[CheckedBatch], *how: Any) -> list[Pending | TidelogError]:
        return [pending for batch in batches for pending in append(log, target, [batch], *how)]

    return broken


async def _send_and_take_any_answer(self: ProduceForwarder, leader: BrokerRegistration, load: Load) -> None:
    appends = [append for _, sent in load for append in sent]
    found = await send_forwarded(self._peers, self._view.topics, leader, appends)
    at = 0
    for queue, sent in load:
        answers = slice(at, at + len(sent))
        at += len(sent)
        if isinstance(found, OutcomeUnknown):
            if queue.sent is sent:
                self._on_answers(queue, queue.lost(found))
        elif self._queues.get(queue.partition) is queue and queue.sent and len(queue.sent) == len(sent):
            with contextlib.suppress(KeyError, AssertionError):  # of a queue that is on its way twice, or has ended
                self._on_answers(queue, queue.answered(found[answers]))


def _forwarded_knows_no_more(knows_more: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(self: MessageAppender, at: int, request: AppendRequest) -> bool:
        return not self._is_forwarded and await knows_more(self, at, request)

    return broken


def _never_there(self: LeaderLookup, partition: TopicPartition) -> bool:
    return False


def _not_followed(self: object, *changed: object) -> None:
    return


async def _none_found(self: AppointmentLog, number: int) -> list[int]:
    return []


async def _as_if_created(self: AppointmentLog, batch: Batch) -> bool:
    return True


def _never_stale(self: ViewProof) -> None:
    return


def _any_key(self: AccessGuard, key_id: str) -> None:
    return


def _as_long_as_it_likes(self: AccessGuard, call: AuthorizedCall) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _may_as_at_first(may: Callable[..., bool]) -> Callable[..., bool]:
    def broken(self: Principal, operation: str, resource: str, name: str) -> bool:
        if self._rights is not None:
            self._version = self._view.version
        return may(self, operation, resource, name)

    return broken


def _stale_for_good(stale_error: Callable[[ViewProof], Unavailable | None]) -> Callable[[ViewProof], Unavailable | None]:
    stale: dict[ViewProof, Unavailable] = {}

    def broken(self: ViewProof) -> Unavailable | None:
        found = stale.get(self) or stale_error(self)
        if found is not None and math.isfinite(self._proven_s):
            stale[self] = found
        return found

    return broken


def _as_if_committed(pending: Pending | TidelogError | None, request: Any) -> Any:
    return pending.appended if isinstance(pending, PendingAppend) else pending if pending is not None else NOT_AWAITED


def _errors_alone(changed: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: FetchSession, asked: Any, data: Sequence[PartitionData]) -> Any:
        return [(each, answer) for each, answer in changed(self, asked, data) if answer.error_code]

    return broken


def _added_alone(update: Callable[..., bool]) -> Callable[..., bool]:
    def broken(self: FetchSessions, session: FetchSession, request: Any, asked: Sequence[AskedPartition], **how: Any) -> bool:
        held = {(each.asked.topic, each.asked.topic_id, each.asked.request.partition) for each in session.partitions.values()}
        added = [each for each in asked if (each.topic, each.topic_id, each.request.partition) not in held]
        return update(self, session, request, added, **how)

    return broken


def _first_of_session(self: ProducerIds) -> ProducerId:
    self._session = self._present_session() or self._session
    if self._session is None:
        raise Unavailable("this broker has no session yet")
    return ProducerId(self._session * IDS_PER_SESSION)
