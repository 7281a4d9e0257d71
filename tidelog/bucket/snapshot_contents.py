"""Sorts the keys of a snapshot of the metadata: what a restore plans from other evidence, and what it copies. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from compaction.audit.findings import RestoreFinding
from metadata.backup.snapshot import Snapshot
from metadata.cluster.leadership import decode_state
from metadata.cluster.node_ids import parse_node_id
from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, TopicId, TopicPartition
from metadata.store.interface import KeyValue, Put
from metadata.store.keys import KeyLayout
from metadata.topics.topic import Topic, decode_topic


@dataclass(slots=True)
class SnapshotContents:
    """Holds what a snapshot says, by what a restore does with it."""

    revision: int = 0
    topics: dict[TopicId, Topic] = field(default_factory=dict)
    epochs: dict[TopicPartition, LeaderEpoch] = field(default_factory=dict)
    # Counters, by key.
    numbers: dict[str, int] = field(default_factory=dict)
    # One above the highest node id of the snapshot.
    next_node_id: int = 0
    others: list[Put] = field(default_factory=list)

    @classmethod
    def of(cls, snapshot: Snapshot | None, layout: KeyLayout, findings: list[RestoreFinding]) -> SnapshotContents:
        contents = cls()
        if snapshot is None:
            return contents
        contents.revision = snapshot.header.revision
        not_copied = {
            layout.cluster_id,
            layout.restoration,
            layout.restoring,
            layout.skipped_sessions,
            layout.controller,
            layout.appointments,
        }
        counters = {
            layout.next_session,
            layout.next_kafka_node_id,
            layout.partition_count,
            layout.first_leader_epoch,
            layout.revision_base,
        }
        for entry in snapshot.entries:
            key = layout.root + entry.key
            kept = KeyValue(key, entry.value, entry.revision, entry.revision, version=1)
            try:
                if key in not_copied or key.startswith((layout.beginning, layout.brokers, layout.compactors, layout.compactions)):
                    continue
                if key in counters:
                    contents.numbers[key] = _number(kept)
                elif key.startswith(layout.topics):
                    topic = decode_topic(kept)
                    contents.topics[topic.id] = topic
                elif key.startswith(layout.partitions):
                    contents.epochs[layout.parse_partition(key)] = decode_state(kept).leader_epoch
                elif key.startswith(layout.kafka_node_ids):
                    contents.next_node_id = max(contents.next_node_id, parse_node_id(kept) + 1)
                    contents.others.append(Put(key, entry.value))
                else:
                    contents.others.append(Put(key, entry.value))
            except Corrupt as error:
                findings.append(RestoreFinding("note", key, f"{error.message}; it was damaged in the snapshot already"))
        contents.next_node_id = max(contents.next_node_id, contents.numbers.get(layout.next_kafka_node_id, 0))
        return contents


def _number(kept: KeyValue) -> int:
    if not (kept.value.isdigit() and len(kept.value) <= 19):
        raise Corrupt(f"{kept.key} holds no number", key=kept.key)
    return int(kept.value)
