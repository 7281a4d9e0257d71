"""Stores and follows the registrations of brokers: each broker keeps one key under its lease, and all follow all keys.

The value of /{cluster}/brokers/{broker_id}, JSON in UTF-8:

    {"format_version":1,"broker_id":"b-1","session":9,"http_address":"10.0.0.7:8080","grpc_address":"10.0.0.7:9090",
     "rack":"eu-1a","version":"0.1.0","draining":false,"node_id":0,
     "kafka_listeners":[{"name":"public","host":"kafka-0.example.org","port":9092,"security_protocol":"SASL_SSL"}]}

Fields may be absent, and readers skip fields that they do not know. A broker of an earlier version that writes `draining` drops
such fields. Their owner writes them again at its next renewal (gateway/cluster/broker_lease.py).

Invariants: one broker id has one key. A session is registered at most once: its key never returns after it is gone. So a session
that led partitions, is not registered and is sealed will never write again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from metadata.errors import Corrupt, InvalidArgument, NotFound, OutcomeUnknown, Rejected, Unavailable
from metadata.model import Revision, SessionId
from metadata.store.interface import Compare, KeyValue, LeaseId, LeaseLost, MetadataStore, Put
from metadata.store.keys import KeyLayout
from metadata.store.range_watch import RecordWatch

FORMAT_VERSION = 1
# Attempts to write a registration that another writer changes in between.
ATTEMPTS_MAX = 8
# Stands for a missing node id, as in the registration of a broker from before node ids.
NO_NODE_ID = -1
# Departed brokers that are remembered as the last leaders of partitions.
DEPARTED_MAX = 1_000
_BROKER_ID = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)

log = logging.getLogger(__name__)


class KafkaListener(msgspec.Struct, frozen=True, kw_only=True):
    """Names an address at which Kafka clients reach a broker."""

    # Equal listeners of all brokers have the same name, so that a client stays on the listener that it came to.
    name: str
    # As advertised to clients, which may differ from where the broker listens.
    host: str
    port: int
    # PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; a later version may know others.
    security_protocol: str = "PLAINTEXT"


class BrokerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """Registers one broker in one session. Addresses are HOST:PORT, as clients and other brokers reach it."""

    format_version: int = FORMAT_VERSION
    broker_id: str
    session: SessionId
    http_address: str = ""
    grpc_address: str = ""
    rack: str = ""
    version: str = ""
    # The broker hands over its partitions and takes no others.
    draining: bool = False
    # Size of the objects that the broker has failed to write to the bucket for a while; 0 if no write has failed.
    unwritable_bytes: int = 0
    # The broker's number in Kafka's protocol (metadata/cluster/node_ids.py).
    node_id: int = NO_NODE_ID
    kafka_listeners: tuple[KafkaListener, ...] = ()

    @property
    def candidate(self) -> Candidate:
        """Returns the broker as a candidate for leadership."""
        return Candidate(self.session, self.rack, self.draining)

    def kafka_listener(self, name: str) -> KafkaListener | None:
        """Returns the listener of this name; None where this broker has none, or is of a version before Kafka listeners."""
        return next((listener for listener in self.kafka_listeners if listener.name == name), None)


class Registered(msgspec.Struct, frozen=True):
    """Holds a registration as it is stored."""

    registration: BrokerRegistration
    revision: Revision
    lease: LeaseId


def check_broker_id(broker_id: str) -> str:
    """Returns the id. Raises InvalidArgument unless it is a broker id."""
    if not _BROKER_ID.fullmatch(broker_id) or broker_id in {".", ".."}:
        raise InvalidArgument(f"{broker_id[:60]!r} is not a broker id", hint="Use 1 to 249 of a-z A-Z 0-9 . _ -")
    return broker_id


def encode_registration(registration: BrokerRegistration) -> bytes:
    return msgspec.json.encode(registration)


def decode_registration(kept: KeyValue) -> Registered:
    """Decodes a registration. Raises Corrupt if the value is not one."""
    try:
        return Registered(msgspec.json.decode(kept.value, type=BrokerRegistration), kept.mod_revision, kept.lease)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{kept.key} is no broker: {error}", key=kept.key, revision=kept.mod_revision) from error


async def read_brokers(store: MetadataStore, layout: KeyLayout) -> dict[str, Registered]:
    """Returns the registered brokers by id, read past every cache. Raises Unavailable.

    Skips a registration that cannot be read. A broker that counts as gone is sealed first, so nothing is lost if it is alive.
    """
    found: dict[str, Registered] = {}
    for item in (await store.range(layout.brokers)).items:
        try:
            found[item.key.removeprefix(layout.brokers)] = decode_registration(item)
        except Corrupt as error:
            log.error("%s", error)
    return found


async def read_revisions(store: MetadataStore, layout: KeyLayout) -> dict[str, Revision]:
    """Returns the revision of each registration by broker id, read past every cache. Raises Unavailable."""
    return {item.key.removeprefix(layout.brokers): item.mod_revision for item in (await store.range(layout.brokers)).items}


async def write_draining(store: MetadataStore, layout: KeyLayout, broker_id: str, *, draining: bool) -> Revision:
    """Makes a broker drain, or take partitions again: it and the controller follow its key, which stays under its lease.

    Returns the revision of the change. Raises NotFound if no such broker is registered, Rejected, Unavailable, Corrupt.
    """
    key = layout.broker(broker_id)
    unknown: OutcomeUnknown | None = None
    for _ in range(ATTEMPTS_MAX):
        held = await store.get(key)
        if held is None:
            raise NotFound(f"no broker {broker_id} is registered", hint="`tidelog cluster brokers` shows those that are.")
        registration = decode_registration(held).registration
        if registration.draining == draining:
            return held.mod_revision
        if registration.format_version > FORMAT_VERSION:
            raise Rejected(
                f"broker {broker_id} has a newer version of Tidelog ({registration.version})",
                hint="Ask that broker, or upgrade this one.",
            )
        changed = Put(key, encode_registration(msgspec.structs.replace(registration, draining=draining)), held.lease)
        try:
            result = await store.transact([Compare(key, held.mod_revision)], [changed])
        except OutcomeUnknown as error:  # the next read tells whether it happened
            unknown = error
            continue
        except LeaseLost:  # the broker has gone meanwhile
            continue
        if result.succeeded:
            return result.revision
    raise Unavailable(f"the registration of broker {broker_id} could not be changed", key=key) from unknown


class BrokerCache:
    """Caches all registered brokers, fed by a watch. Its owner runs `run()` as a task."""

    def __init__(self, store: MetadataStore, layout: KeyLayout) -> None:
        self._by_session: dict[SessionId, BrokerRegistration] = {}
        self._departed: dict[SessionId, BrokerRegistration] = {}
        self._subscribers: list[Callable[[], None]] = []
        self._records = RecordWatch(store, layout.brokers, lambda kept: decode_registration(kept).registration, self._changed)
        self.run = self._records.watched.run
        self.wait_for = self._records.watched.wait_for

    @property
    def brokers(self) -> Mapping[str, BrokerRegistration]:
        """Returns the registrations by broker id."""
        return self._records.by_name

    @property
    def revisions(self) -> Mapping[str, Revision]:
        """Returns the revision of each registration by broker id."""
        return self._records.revisions

    @property
    def revision(self) -> Revision:
        """Returns the store's revision up to which this cache has seen all changes."""
        return self._records.watched.revision

    def by_session(self, session: SessionId) -> BrokerRegistration | None:
        """Returns the broker with this session; None if this cache knows of no such registration."""
        return self._by_session.get(session)

    def last_with_session(self, session: SessionId) -> BrokerRegistration | None:
        """Returns the broker that is registered with this session, or that was and is gone."""
        return self._by_session.get(session) or self._departed.get(session)

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls `changed` after every change from now on; answers how to end it. It must not block, nor raise."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    def _changed(self) -> None:
        gone = self._by_session.keys() - {registration.session for registration in self.brokers.values()}
        self._departed |= {session: self._by_session[session] for session in gone}
        while len(self._departed) > DEPARTED_MAX:
            del self._departed[next(iter(self._departed))]
        self._by_session = {registration.session: registration for registration in self.brokers.values()}
        for changed in tuple(self._subscribers):
            changed()


class Candidate(NamedTuple):
    """Names a broker that may lead partitions, in its current session."""

    session: SessionId
    rack: str = ""
    draining: bool = False
