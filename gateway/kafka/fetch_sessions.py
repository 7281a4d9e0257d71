"""Keeps fetch sessions (KIP-227): a client sends its partitions once, then only changes. Pure: the caller brings the time.

    session id 0, epoch 0     full fetch, asks for a session     all partitions are answered; the answer names the session, or 0
    session id S, epoch 0     the same; S is closed first
    any id,       epoch -1    full fetch without a session; the named session is closed first
    session id S, epoch n     incremental fetch: partitions of S that changed are answered; the next epoch is n + 1

An incremental answer names a partition if it has records or an error, if its high watermark or log start offset moved, or if the
client has to read elsewhere. Partitions that had records go to the end of their session, so that the next read begins with others.

A session may have a watch: then an incremental fetch looks up only the partitions that are due.

    changes by the client, news of the log ─▶ due ─▶ take: one fetch looks them up ─▶ answered at their end: at rest
                                               ▲                                  └▶ records, an error, left out, no answer ─┐
                                               └─────────────────────────────────────────────────────────────────────────────┘

Sessions and their partitions take memory, so the cache bounds both numbers. A full cache closes a session that was not used for
EVICTION_S, else one of that age with fewer partitions than the new one. A client without a session sends full fetches.

Invariants: a session serves the owner that opened it and no other. Each epoch of a session serves one request. A client with a
session learns the same as from full fetches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.kafka.errors import ErrorCode
from gateway.kafka.protocol.hot_messages import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from metadata.measurements import counter, gauge
from segments.read.reader_notifier import PartitionWatch, ReaderNotifier

# Kafka's max.incremental.fetch.session.cache.slots.
SESSIONS_MAX: Final = 1_000
# Partitions of all sessions. One takes about 400 bytes, with a watch about 1,100.
PARTITIONS_MAX: Final = 50_000
# Kafka's min.incremental.fetch.session.eviction.ms.
EVICTION_S: Final = 120.0
SESSION_ID_MAX: Final = 0x7FFF_FFFF
# Rights that a watch keeps beside those of its partitions, before all of them are looked up again.
GRANTED_SPARE: Final = 100
_NO_SESSION: Final = 0
_INITIAL_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 0x7FFF_FFFF
_UNKNOWN_OFFSET: Final = -1


class Owner(NamedTuple):
    """The client that a session belongs to, as far as the broker knows it."""

    listener: str
    # Empty if authentication is off.
    principal: str


class AskedPartition(NamedTuple):
    """One partition that a fetch reads."""

    # Empty in versions that name topics by id.
    topic: str
    topic_id: bytes
    request: FetchPartition


# Name of the topic, or its id; number of the partition.
SessionKey = tuple[str | bytes, int]


class SessionWatch(PartitionWatch[SessionKey]):
    """Watches the partitions of one session, for one session of the broker and one state of the client's rights."""

    __slots__ = ("_stamp", "granted")

    def __init__(self, notifier: ReaderNotifier, keys: Iterable[SessionKey], *, stamp: tuple[object, ...] = ()) -> None:
        """`stamp` stands for the state of the client's rights."""
        super().__init__(notifier, keys)
        self._stamp = stamp
        # Rights that fetches of this session have used: (operation, kind, name).
        self.granted: set[tuple[str, str, str]] = set()

    def is_good(self, notifier: ReaderNotifier, stamp: tuple[object, ...], *, partitions: int) -> bool:
        """Returns whether partitions at rest may stay so: False if the session of the broker, or the client's rights, changed.

        Also False if most of the rights are of partitions that are not among the present ones, whose number is `partitions`.
        """
        is_same = not self.is_closed and self.notifier is notifier and self._stamp == stamp
        return is_same and len(self.granted) <= 2 * partitions + GRANTED_SPARE


class _CachedPartition:
    """Holds what the client asks for of a partition, and what it was last answered."""

    __slots__ = ("asked", "high_watermark", "log_start_offset")

    def __init__(self, asked: AskedPartition) -> None:
        self.asked = asked
        self.high_watermark = self.log_start_offset = _UNKNOWN_OFFSET

    def must_answer(self, data: PartitionData) -> bool:
        """Returns whether an incremental answer names this partition. Notes what the client is then answered."""
        changed = data.high_watermark != self.high_watermark or data.log_start_offset != self.log_start_offset
        self.high_watermark, self.log_start_offset = data.high_watermark, data.log_start_offset
        if data.error_code != ErrorCode.NONE or data.diverging_epoch is not None:
            self.high_watermark = _UNKNOWN_OFFSET  # the client learns the end of the error, too
            return True
        return changed or bool(data.records) or data.preferred_read_replica >= 0


class FetchSession:
    """The partitions of one client. The order is the order of reading."""

    __slots__ = ("by_id", "epoch", "opened_s", "owner", "partitions", "session_id", "used_s", "watch")

    def __init__(self, session_id: int, owner: Owner, *, by_id: bool, now_s: float) -> None:
        self.session_id = session_id
        self.owner = owner
        # Whether topics are named by their ids.
        self.by_id = by_id
        # The epoch of the next incremental fetch.
        self.epoch = 1
        self.opened_s = self.used_s = now_s
        self.partitions: dict[SessionKey, _CachedPartition] = {}
        # None: each fetch looks up all partitions.
        self.watch: SessionWatch | None = None

    def changed(self, asked: Sequence[AskedPartition], data: Sequence[PartitionData]) -> list[tuple[AskedPartition, PartitionData]]:
        """Returns the partitions that an incremental answer names, in the order of reading."""
        found = []
        for each, answer in zip(asked, data, strict=True):
            key = key_of(each)
            cached = self.partitions.get(key)
            if cached is None:  # forgotten by a request that did not wait for this answer
                continue
            if cached.must_answer(answer):
                found.append((each, answer))
            if answer.records:
                self.partitions[key] = self.partitions.pop(key)
                if self.watch is not None:
                    self.watch.move_to_end(key)
        return found

    def replace_watch(self, watch: SessionWatch | None) -> None:
        if self.watch is not None:
            self.watch.close()
        self.watch = watch


class FetchPlan:
    """Says what one fetch reads, and how it is answered."""

    __slots__ = ("_by_id", "_owner", "_request", "_sessions", "_taken", "_watch", "partitions", "session")

    def __init__(
        self,
        sessions: FetchSessions,
        request: FetchRequest,
        asked: Sequence[AskedPartition],
        *,
        owner: Owner,
        by_id: bool,
        session: FetchSession | None = None,
    ) -> None:
        """`session` is None for a full fetch, which reads the partitions that were asked for."""
        self.session = session
        # The partitions that `answer` is given data of.
        self.partitions = asked
        self._by_id = by_id
        self._sessions = sessions
        self._request = request
        self._owner = owner
        # The watch from which partitions were taken, and which.
        self._watch: SessionWatch | None = None
        self._taken: Sequence[SessionKey] = ()

    def take_all(self) -> Sequence[AskedPartition]:
        """Returns all partitions of the fetch, in the order of reading."""
        if self.session is not None:
            if self.session.watch is not None:
                self.session.watch.mark_all()
                return self.take_due(self.session.watch)
            self.partitions = [each.asked for each in self.session.partitions.values()]
        return self.partitions

    def take_due(self, watch: SessionWatch) -> Sequence[AskedPartition]:
        """Returns the partitions of the session that must be looked up, with those that this plan has returned before."""
        assert self.session is not None, "a full fetch reads all that it asks for"
        self._put_back()
        self._watch, self._taken = watch, watch.take()
        self.partitions = [self.session.partitions[key].asked for key in self._taken]
        return self.partitions

    def answer(self, data: Sequence[PartitionData], *, now_s: float, at_rest: Sequence[bool] = ()) -> FetchResponse:
        """Returns the answer; `data` has one element for each of `partitions`, in their order.

        `at_rest` says which of them need not be looked up again before there is news; by default none.
        """
        if self.session is not None:
            changed = self.session.changed(self.partitions, data)
            if self._watch is not None:
                for index, key in enumerate(self._taken):
                    if not at_rest or not at_rest[index]:
                        self._watch.mark(key)
                self._taken = ()
            session_id = self.session.session_id if self.session.partitions else _NO_SESSION
            return FetchResponse(session_id=session_id, responses=_by_topic(changed))
        responses, at = [], 0
        for topic in self._request.topics:
            end = at + len(topic.partitions)
            responses.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=data[at:end]))
            at = end
        session_id = _NO_SESSION
        if self._request.session_epoch == _INITIAL_EPOCH:
            session_id = self._sessions.open(self._owner, self.partitions, data, by_id=self._by_id, now_s=now_s)
        return FetchResponse(session_id=session_id, responses=responses)

    def abandon(self) -> None:
        """Notes that the request gets no answer: the client may repeat it in the same epoch."""
        self._put_back()
        if self.session is not None and self.session.epoch == _next_epoch(self._request.session_epoch):
            self.session.epoch = self._request.session_epoch

    def _put_back(self) -> None:
        """Makes the partitions due again that were taken and not answered."""
        if self._watch is not None:
            for key in self._taken:
                self._watch.mark(key)
            self._taken = ()


@dataclass(slots=True)
class FetchSessionFigures:
    """Counts the sessions of one broker for its metrics."""

    sessions: int = gauge("tidelog_kafka_fetch_sessions", "Fetch sessions of Kafka clients that this broker keeps.")
    partitions: int = gauge("tidelog_kafka_fetch_session_partitions", "Partitions in the fetch sessions that this broker keeps.")
    evicted: int = counter("tidelog_kafka_fetch_sessions_evicted", "Fetch sessions that this broker gave up for want of room.")


class FetchSessions:
    """The sessions of all clients of one broker."""

    def __init__(
        self, new_id: Callable[[], int], *, sessions_max: int = SESSIONS_MAX, partitions_max: int = PARTITIONS_MAX
    ) -> None:
        """`new_id` returns a random number from 1 to SESSION_ID_MAX."""
        self._new_id = new_id
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        # Sessions by id, the least recently used first.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.figures = FetchSessionFigures(sessions=0, partitions=0)

    def begin(self, request: FetchRequest, *, owner: Owner, by_id: bool, now_s: float) -> FetchPlan | ErrorCode:
        """Returns the plan of a fetch, or the error of the whole request. `by_id`: topics are named by their ids."""
        asked = [AskedPartition(topic.topic, topic.topic_id, each) for topic in request.topics for each in topic.partitions]
        session = self._sessions.get(request.session_id)
        if session is not None and session.owner != owner:
            session = None
        if request.session_epoch in (_INITIAL_EPOCH, _FINAL_EPOCH):
            if session is not None:
                self._close(session)
            return FetchPlan(self, request, asked, owner=owner, by_id=by_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.by_id != by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.used_s = now_s
        self._sessions.move_to_end(session.session_id)
        if not self._update(session, request, asked, now_s=now_s):
            self._evict(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.epoch = _next_epoch(session.epoch)
        if not session.partitions:
            self._close(session)
        return FetchPlan(self, request, (), owner=owner, by_id=by_id, session=session)

    def open(
        self, owner: Owner, asked: Sequence[AskedPartition], data: Sequence[PartitionData], *, by_id: bool, now_s: float
    ) -> int:
        """Opens a session whose first answer was `data`. Returns its id; 0 if the cache has no space."""
        partitions = {key_of(each): _CachedPartition(each) for each in asked}
        if not partitions or not self._has_room(len(partitions), now_s=now_s):
            return _NO_SESSION
        while (session_id := self._new_id()) in self._sessions:
            pass
        session = self._sessions[session_id] = FetchSession(session_id, owner, by_id=by_id, now_s=now_s)
        session.partitions = partitions
        session.changed(asked, data)
        self.figures.partitions += len(partitions)
        self.figures.sessions = len(self._sessions)
        return session_id

    def _update(self, session: FetchSession, request: FetchRequest, asked: Sequence[AskedPartition], *, now_s: float) -> bool:
        """Applies the client's changes to the session. Returns False, without a change to it, if they do not fit."""
        added = {key for each in asked if (key := key_of(each)) not in session.partitions}
        if not self._fits(partitions=len(added), sessions=0, now_s=now_s):
            return False
        before = len(session.partitions)
        for each in asked:
            cached = session.partitions.get(key_of(each))
            if cached is None:
                session.partitions[key_of(each)] = _CachedPartition(each)
            else:
                cached.asked = each
            if session.watch is not None:
                session.watch.add(key_of(each))
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                session.partitions.pop((topic.topic or topic.topic_id, number), None)
                if session.watch is not None:
                    session.watch.remove((topic.topic or topic.topic_id, number))
        self.figures.partitions += len(session.partitions) - before
        return True

    # ── room ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _has_room(self, partitions: int, *, now_s: float) -> bool:
        """Closes idle sessions for a new one of this many partitions. Returns whether it fits."""
        if self._fits(partitions=partitions, sessions=1, now_s=now_s):
            return True
        if self.figures.partitions + partitions > self._partitions_max:
            return False
        old = [each for each in self._sessions.values() if now_s - each.opened_s > EVICTION_S]
        smallest = min(old, key=lambda each: len(each.partitions), default=None)
        if smallest is None or len(smallest.partitions) >= partitions:
            return False
        self._evict(smallest)
        return True

    def _fits(self, *, partitions: int, sessions: int, now_s: float) -> bool:
        """Closes idle sessions as needed, and returns whether this many more partitions fit."""
        while not (fits := self._is_below_bounds(partitions, sessions)):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_s - oldest.used_s <= EVICTION_S:
                break
            self._evict(oldest)
        return fits

    def _is_below_bounds(self, partitions: int, sessions: int) -> bool:
        return self.figures.partitions + partitions <= self._partitions_max and len(self._sessions) + sessions <= self._sessions_max

    def _evict(self, session: FetchSession) -> None:
        self._close(session)
        self.figures.evicted += 1

    def _close(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        session.replace_watch(None)
        self.figures.partitions -= len(session.partitions)
        self.figures.sessions = len(self._sessions)


def key_of(asked: AskedPartition) -> SessionKey:
    return asked.topic or asked.topic_id, asked.request.partition


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == _EPOCH_MAX else epoch + 1


def _by_topic(answered: Sequence[tuple[AskedPartition, PartitionData]]) -> list[FetchableTopicResponse]:
    topics: dict[str | bytes, FetchableTopicResponse] = {}
    for asked, data in answered:
        key = asked.topic or asked.topic_id
        if key not in topics:
            topics[key] = FetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id, partitions=[])
        topics[key].partitions.append(data)  # type: ignore[attr-defined]  # the list from above
    return list(topics.values())
