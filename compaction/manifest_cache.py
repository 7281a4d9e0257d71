"""The newest manifests, as they were read from the bucket, and the one way to create the next.

A manifest that is kept here may be old by the time it is asked for: then the create of the next version loses, it is forgotten, and
whoever planned from it plans again. Bounded in bytes; who was asked for longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from metadata.cluster.manifest_notice import ManifestNotice
from metadata.errors import Corrupt
from metadata.model import TopicPartition
from segments.history.manifest import Manifest, no_manifest
from segments.history.manifest_store import commit_manifest, newest_manifest, newest_manifests
from segments.object_store.interface import ObjectStore

OnNewest = Callable[[str, Manifest, bool], None]

_MANIFEST_BYTES: Final = 600
_FILE_BYTES: Final = 500
_GROUP_BYTES: Final = 150
_PRODUCER_BYTES: Final = 600


class ManifestCache:
    def __init__(self, store: ObjectStore, *, bytes_max: int, reads_max: int = 16, timeout_s: float = 60.0) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._reads_max = reads_max
        self._timeout_s = timeout_s
        self._kept: OrderedDict[TopicPartition, Manifest] = OrderedDict()
        self._bytes = 0
        self._changed: dict[TopicPartition, int] = {}
        self._subscribers: list[OnNewest] = []

    def subscribe(self, on_newest: OnNewest) -> Callable[[], None]:
        """Calls `on_newest` for each manifest that is read or committed here and is newer than what was kept: with the name of the
        topic, the manifest, and whether it was committed here. Returns what ends that."""
        self._subscribers.append(on_newest)
        return lambda: self._subscribers.remove(on_newest)

    def kept(self, partition: TopicPartition) -> Manifest | None:
        """As it was read last, where it is still in mind."""
        return self._kept.get(partition)

    async def newest(self, topic: str, partition: TopicPartition) -> Manifest:
        """Kept, or read; version 0 where there is none. Raises Corrupt, and what the store raises."""
        manifest = self._kept.get(partition)
        if manifest is None:
            manifest = await self.read_one(topic, partition)
        else:
            self._kept.move_to_end(partition)
        return manifest

    async def read_one(self, topic: str, partition: TopicPartition) -> Manifest:
        """The same, past what is kept."""
        manifest = await newest_manifest(self._store, topic, partition) or no_manifest(partition)
        self._keep(topic, manifest)
        return manifest

    async def read(self, topics: Mapping[TopicPartition, str]) -> dict[TopicPartition, Manifest | Corrupt]:
        """Of many, past what is kept; a damaged one stands as Corrupt in its place. Raises what the store raises."""
        read = await newest_manifests(self._store, topics, reads_max=self._reads_max)
        found = {partition: manifest or no_manifest(partition) for partition, manifest in read.items()}
        for partition, manifest in found.items():
            if isinstance(manifest, Manifest):
                self._keep(topics[partition], manifest)
        return found

    async def commit(self, topic: str, manifest: Manifest) -> bool:
        """Whether it counts. False: another was first; it is forgotten here, so that `newest` reads it."""
        try:
            won = await commit_manifest(self._store, topic, manifest, timeout_s=self._timeout_s)
        except BaseException:
            self.forget(manifest.place)
            raise
        if won:
            self._keep(topic, manifest, committed=True)
            self._changed[manifest.place] = manifest.version
        else:
            self.forget(manifest.place)
        return won

    def forget(self, partition: TopicPartition) -> None:
        manifest = self._kept.pop(partition, None)
        if manifest is not None:
            self._bytes -= _size_of(manifest)

    def changed(self) -> list[ManifestNotice]:
        """What was committed since the last call, for whom it concerns."""
        changed, self._changed = self._changed, {}
        return [ManifestNotice(where.topic_id, where.partition, version) for where, version in changed.items()]

    def _keep(self, topic: str, manifest: Manifest, *, committed: bool = False) -> None:
        before = self._kept.get(manifest.place)
        self.forget(manifest.place)
        self._kept[manifest.place] = manifest
        self._bytes += _size_of(manifest)
        while self._bytes > self._bytes_max and len(self._kept) > 1:
            self.forget(next(iter(self._kept)))
        if before is None or before.version < manifest.version:
            for on_newest in self._subscribers:
                on_newest(topic, manifest, committed)


def _size_of(manifest: Manifest) -> int:
    groups = sum(len(file.row_groups) for file in manifest.files)
    named = len(manifest.files) + len(manifest.retired) + len(manifest.superseded)
    return _MANIFEST_BYTES + named * _FILE_BYTES + groups * _GROUP_BYTES + len(manifest.producers) * _PRODUCER_BYTES
