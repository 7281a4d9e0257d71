"""Spells every key of etcd and of the embedded store, and no other module does. Pure.

    /{cluster}/cluster_id                     text; created once
    /{cluster}/next_session                   decimal; the first session number that was never taken
    /{cluster}/next_kafka_node_id             decimal; the first node id that no broker has (cluster/node_ids.py); absent is 0
    /{cluster}/kafka_node_ids/{broker_id}     decimal; the number of a broker in Kafka's protocol, created once
    /{cluster}/beginning/{session:016x}       text: the nonce of the broker that took this session number and has yet to begin it
    /{cluster}/controller                     text: the broker that is it; leased
    /{cluster}/appointments                   JSON (controller/appointments.py); absent is 0, no batch of appointments yet
    /{cluster}/brokers/{broker_id}            JSON (cluster/broker_registry.py); leased
    /{cluster}/written/{session:016x}         decimal; committed segments of a session that writes; leased (gateway/cluster/)
    /{cluster}/partition_count                decimal; partitions of all topics together, kept with each change of a topic
    /{cluster}/first_leader_epoch             decimal; the first leader epoch of new topics, above all of deleted ones; absent is 0
    /{cluster}/revision_base                  decimal; added to revisions on the bucket; absent is 0 (backup/snapshot.py)
    /{cluster}/restoration                    decimal; which restore from the bucket made these metadata; absent is 0, none
    /{cluster}/skipped_sessions               text: "first-end,…"; sessions that a restore did not see (backup/restore_state.py)
    /{cluster}/restoring                      JSON: a restore from the bucket is under way, or was interrupted: no broker may start
    /{cluster}/scratch/{nonce}                any; leased: `tidelog doctor` tries whether it may write
    /{cluster}/topics/{topic}                 JSON (topics/topic.py)
    /{cluster}/partitions/{topic_id}/{p}      JSON (cluster/leadership.py)
    /{cluster}/groups/{group}                 JSON (groups/record.py); the group's name percent-encoded, as it may hold any '/'
    /{cluster}/offsets/{group}/{topic_id}/{p}   JSON (groups/offsets.py); likewise
    /{cluster}/keys/{key_id}                  JSON (access/api_key.py)
    /{cluster}/acls/{acl_id}                  JSON (access/acl.py)
    /{cluster}/quotas/{principal}             JSON (access/quota.py); the principal's name percent-encoded
    /{cluster}/scram/{user}                   JSON (access/scram.py); likewise, and in no snapshot
    /{cluster}/scram_secret                   text; created once, and in no snapshot (metadata/cluster/identity.py)
    /{cluster}/peer_secret                    text; created once, and in no snapshot (metadata/cluster/identity.py)
    /{cluster}/compactors/{compactor_id}      text: its version; leased
    /{cluster}/compactions/{unit}             JSON (cluster/manifest_notice.py); leased

Invariant: a key that was built here parses to what it was built from, and no two things have the same key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from urllib.parse import quote, unquote_to_bytes

from metadata.errors import Corrupt, InvalidArgument
from metadata.model import Partition, SessionId, TopicId, TopicPartition
from metadata.store.interface import KeyValue

_CLUSTER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_PARTITION = r"([0-9a-f]{32})/(0|[1-9][0-9]{0,9})"
_PARTITION_KEY = re.compile(_PARTITION, re.ASCII)
_SESSION_KEY = re.compile("[0-9a-f]{16}", re.ASCII)
_OFFSET_KEY = re.compile(f"([^/]+)/{_PARTITION}", re.ASCII)


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """Spells the keys of one cluster. Clusters of different names can share an etcd."""

    cluster: str = "tidelog"

    def __post_init__(self) -> None:
        if not _CLUSTER.fullmatch(self.cluster):
            raise InvalidArgument(
                f"{self.cluster!r} is not a name for a cluster",
                hint="Use 1 to 63 of a-z 0-9 -, not beginning or ending with '-'.",
            )

    @property
    def root(self) -> str:
        """Returns the prefix of all keys of the cluster."""
        return f"/{self.cluster}/"

    @property
    def prefix(self) -> str:
        """Returns the prefix of all keys of the cluster."""
        return f"/{self.cluster}/"

    @property
    def cluster_id(self) -> str:
        return f"/{self.cluster}/cluster_id"

    @property
    def next_session(self) -> str:
        return f"/{self.cluster}/next_session"

    @property
    def beginning(self) -> str:
        """Returns the prefix of the session numbers that were taken and have yet to begin."""
        return f"/{self.cluster}/beginning/"

    def beginning_session(self, session: SessionId) -> str:
        return f"{self.beginning}{session:016x}"

    def parse_beginning(self, key: str) -> SessionId:
        """Returns the session in a key under `beginning`; Corrupt where it holds none."""
        match = _SESSION_KEY.fullmatch(key.removeprefix(self.beginning))
        if match is None:
            raise Corrupt(f"{key} is not the key of a session", hint="Delete it: nothing of Tidelog wrote it.", key=key)
        return SessionId(int(match[0], 16))

    @property
    def next_kafka_node_id(self) -> str:
        return f"/{self.cluster}/next_kafka_node_id"

    @property
    def kafka_node_ids(self) -> str:
        """Returns the prefix of the numbers that brokers have in Kafka's protocol."""
        return f"/{self.cluster}/kafka_node_ids/"

    def kafka_node_id(self, broker_id: str) -> str:
        """`broker_id` has passed check_broker_id, so it holds no '/'."""
        return self.kafka_node_ids + broker_id

    @property
    def written(self) -> str:
        """Returns the prefix of the notes of sessions that write."""
        return f"/{self.cluster}/written/"

    def written_by(self, session: SessionId) -> str:
        return f"{self.written}{session:016x}"

    @property
    def partition_count(self) -> str:
        return f"/{self.cluster}/partition_count"

    @property
    def first_leader_epoch(self) -> str:
        return f"/{self.cluster}/first_leader_epoch"

    @property
    def revision_base(self) -> str:
        return f"/{self.cluster}/revision_base"

    @property
    def restoration(self) -> str:
        return f"/{self.cluster}/restoration"

    @property
    def skipped_sessions(self) -> str:
        return f"/{self.cluster}/skipped_sessions"

    @property
    def restoring(self) -> str:
        return f"/{self.cluster}/restoring"

    @property
    def peer_secret(self) -> str:
        return f"/{self.cluster}/peer_secret"

    @property
    def api_keys(self) -> str:
        """Returns the prefix of all API keys."""
        return f"/{self.cluster}/keys/"

    def api_key(self, key_id: str) -> str:
        """`key_id` has passed check_key_id."""
        return self.api_keys + key_id

    @property
    def acls(self) -> str:
        """Returns the prefix of all ACLs."""
        return f"/{self.cluster}/acls/"

    def acl(self, acl_id: str) -> str:
        """`acl_id` is a binding's own."""
        return self.acls + acl_id

    @property
    def quotas(self) -> str:
        """Returns the prefix of all quotas."""
        return f"/{self.cluster}/quotas/"

    def quota(self, principal: str) -> str:
        """`principal` has passed check_principal, or is `*`."""
        return self.quotas + _quoted(principal)

    @property
    def scram_users(self) -> str:
        """Returns the prefix of all SCRAM users."""
        return f"/{self.cluster}/scram/"

    def scram_user(self, user: str) -> str:
        """`user` has passed check_principal."""
        return self.scram_users + _quoted(user)

    @property
    def scram_secret(self) -> str:
        return f"/{self.cluster}/scram_secret"

    @property
    def controller(self) -> str:
        return f"/{self.cluster}/controller"

    @property
    def appointments(self) -> str:
        return f"/{self.cluster}/appointments"

    @property
    def brokers(self) -> str:
        """Returns the prefix of all registered brokers."""
        return f"/{self.cluster}/brokers/"

    def broker(self, broker_id: str) -> str:
        """`broker_id` has passed check_broker_id, so it holds no '/'."""
        return self.brokers + broker_id

    def scratch(self, nonce: str) -> str:
        return f"/{self.cluster}/scratch/{nonce}"

    @property
    def topics(self) -> str:
        """Returns the prefix of all topics."""
        return f"/{self.cluster}/topics/"

    def topic(self, name: str) -> str:
        """`name` has passed check_topic_name, so it holds no '/'."""
        return self.topics + name

    def parse_topic(self, key: str) -> str:
        """Returns the name in a key under `topics`."""
        return key.removeprefix(self.topics)

    @property
    def partitions(self) -> str:
        """Returns the prefix of all partitions."""
        return f"/{self.cluster}/partitions/"

    def partitions_of(self, topic_id: TopicId) -> str:
        """Returns the prefix of the partitions of one topic."""
        return f"{self.partitions}{topic_id}/"

    def partition(self, partition: TopicPartition) -> str:
        return f"{self.partitions}{partition.topic_id}/{partition.partition}"

    def parse_partition(self, key: str) -> TopicPartition:
        """Returns the partition in a key under `partitions`; Corrupt where it holds none."""
        match = _PARTITION_KEY.fullmatch(key.removeprefix(self.partitions))
        if match is None:
            raise Corrupt(f"{key} is not the key of a partition", hint="Delete it: nothing of Tidelog wrote it.", key=key)
        return TopicPartition(TopicId(intern(match[1])), Partition(int(match[2])))  # one text for all partitions of a topic

    @property
    def groups(self) -> str:
        """Returns the prefix of all consumer groups."""
        return f"/{self.cluster}/groups/"

    def group(self, name: str) -> str:
        """`name` has passed check_group_name."""
        return self.groups + _quoted(name)

    def parse_group(self, key: str) -> str:
        """Returns the name in a key under `groups`; Corrupt where it holds none."""
        return _unquoted(key.removeprefix(self.groups), key)

    @property
    def committed_offsets(self) -> str:
        """Returns the prefix of the committed offsets of all groups."""
        return f"/{self.cluster}/offsets/"

    def offsets(self, group: str) -> str:
        """Returns the prefix of what one group has committed."""
        return f"{self.committed_offsets}{_quoted(group)}/"

    def offset(self, group: str, partition: TopicPartition) -> str:
        return self.offset_keys(group, (partition,))[0]

    def offset_keys(self, group: str, partitions: Iterable[TopicPartition]) -> list[str]:
        """Returns the keys of what one group has committed for these partitions, in their order."""
        prefix = self.offsets(group)
        return [f"{prefix}{partition.topic_id}/{partition.partition}" for partition in partitions]

    def parse_offset(self, key: str) -> tuple[str, TopicPartition]:
        """Returns the group and the partition in a key under `committed_offsets`; Corrupt where it holds none."""
        match = _OFFSET_KEY.fullmatch(key.removeprefix(self.committed_offsets))
        if match is None:
            raise Corrupt(f"{key} is not the key of a committed offset", hint="Delete it: nothing of Tidelog wrote it.", key=key)
        return _unquoted(match[1], key), TopicPartition(TopicId(intern(match[2])), Partition(int(match[3])))

    @property
    def compactors(self) -> str:
        """Returns the prefix of all compactors that are at work."""
        return f"/{self.cluster}/compactors/"

    def compactor(self, compactor_id: str) -> str:
        """`compactor_id` has passed check_broker_id, so it holds no '/'."""
        return self.compactors + compactor_id

    @property
    def compactions(self) -> str:
        """Returns the prefix of what compactors have done a short while ago."""
        return f"/{self.cluster}/compactions/"

    def compaction(self, unit: str) -> str:
        return self.compactions + unit


@lru_cache(1_000)  # a commit, and a reading of offsets, has thousands of keys of one group
def _quoted(name: str) -> str:
    return quote(name, safe="")


def _unquoted(quoted: str, key: str) -> str:
    if not (name := _name_in(quoted)):
        raise Corrupt(f"{key} is not the key of a consumer group", hint="Delete it: nothing of Tidelog wrote it.", key=key)
    return name


@lru_cache(1_000)
def _name_in(quoted: str) -> str:
    """Returns the name; empty where there is none."""
    try:
        name = unquote_to_bytes(quoted).decode()
    except UnicodeDecodeError:
        name = ""
    return name if quote(name, safe="") == quoted else ""


def parse_number(held: KeyValue | None, *, absent: int) -> int:
    """Returns the number that a key holds in decimal, or `absent` where there is no key. Raises Corrupt where it holds something
    else."""
    if held is None:
        return absent
    if not (held.value.isdigit() and len(held.value) <= 19):
        raise Corrupt(f"{held.key} holds no number", key=held.key, revision=held.mod_revision)
    return int(held.value)
