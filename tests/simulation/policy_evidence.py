"""Brings together what the policies of one world are judged by: the manifests that counted, the files that they named, what
producers sent, what was asked for; and judges each partition by it.

Only files with gaps are opened: what lies in the others follows from their offsets, and is compared elsewhere, by readers and in
the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from metadata.model import Partition, TopicPartition
from metadata.topics.settings import TopicSettings
from metadata.topics.topic import Topic
from segments.bucket.layout import history_file_key
from segments.history.manifest import HistoryFile
from tests.simulation.archive_store import ArchiveStore
from tests.simulation.bucket_reader import BucketContents, read_rows
from tests.simulation.clients import Clients
from tests.simulation.history_checker import Invariant, RecordId, Violation
from tests.simulation.policy_judge import judge_log_starts
from tests.simulation.policy_model import Gone, LandedRun, PartitionPast, SentRecord, judge_versions
from tests.simulation.record_deleter import RecordDeleter


class PolicyEvidence:
    def __init__(self, bucket: ArchiveStore, archived: BucketContents, topics: Mapping[str, Topic], clients: Clients) -> None:
        """`archived`: what segments ever held; `topics`: all that there ever were, by id."""
        self._bucket = bucket
        self._archived = archived
        self._topics = topics
        self._clients = clients
        self.gone: dict[str, Gone] = {}
        """Of each partition that has manifests."""

    def judged(self, deleter: RecordDeleter) -> list[Violation]:
        found: list[Violation] = []
        for partition, versions in self._bucket.versions.items():
            topic = self._topics[partition.topic_id]
            log = dict(self._archived.log.get(str(partition), ()))
            files = _Files(self._bucket.ever, topic.name, partition, log, self._clients.sent_records)
            past = PartitionPast(
                str(partition),
                TopicSettings.parse(topic.settings),
                log,
                self._clients.sent_records,
                list(self._runs(partition)),
                versions,
                files.offsets_in,
                [asked for asked in deleter.asked if asked.partition == str(partition)],
            )
            self.gone[str(partition)], violations = judge_versions(past)
            found += [*violations, *files.violations]
        for topic in self._topics.values():
            for number in range(topic.partition_count):
                self.gone.setdefault(str(TopicPartition(topic.id, Partition(number))), Gone())
        return [*found, *judge_log_starts(self._clients.events, deleter.deleted, self.gone)]

    def tallies(self) -> dict[str, int]:
        causes = [version.manifest.cause for versions in self._bucket.versions.values() for version in versions]
        return {
            "log starts raised by retention": causes.count("retention"),
            "log starts raised by request": causes.count("delete-records"),
            "files merged": causes.count("merge"),
            "key passes": causes.count("key-compaction"),
            "records removed for others of their key": sum(len(gone.removed_ms) for gone in self.gone.values()),
        }

    def _runs(self, partition: TopicPartition) -> Iterator[LandedRun]:
        for run in self._archived.stored.get(str(partition), ()):
            yield LandedRun(run.base_offset, run.last_offset, run.size_bytes, self._bucket.landed_ms[run.key])


class _Files:
    """Of one partition."""

    def __init__(
        self,
        objects: Mapping[str, bytes],
        topic: str,
        partition: TopicPartition,
        log: Mapping[int, RecordId],
        sent: Mapping[RecordId, SentRecord],
    ) -> None:
        self._objects = objects
        self._topic = topic
        self._partition = partition
        self._log = log
        self._sent = sent
        self._read: dict[str, Collection[int]] = {}
        self.violations: list[Violation] = []

    def offsets_in(self, file: HistoryFile) -> Collection[int]:
        if file.record_count == file.last_offset - file.base_offset + 1:
            return range(file.base_offset, file.last_offset + 1)
        if file.name not in self._read:
            self._read[file.name] = [*self._rows(file)]
        return self._read[file.name]

    def _rows(self, file: HistoryFile) -> Iterator[int]:
        key = history_file_key(self._topic, self._partition, file.name)
        for offset, dated_ms, key_of_record, is_tombstone, record in read_rows(self._objects[key]):
            yield offset
            sent = self._sent.get(record, SentRecord(None, False, dated_ms))
            if record != self._log.get(offset) or sent != (key_of_record, is_tombstone, dated_ms):
                what = f"{record} at offset {offset} of {key}, and not {self._log.get(offset)} as it was sent"
                self.violations.append(Violation(Invariant.EQUIVALENT, what))
