"""Caches the newest manifests that were read, and is the one way to create the next.

A cached manifest may be outdated: then the create of the next version loses, the manifest is dropped, and
its caller plans again. Bounded in bytes; the least recently used goes first.
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
    """Reads, caches and commits manifests."""

    def __init__(self, store: ObjectStore, *, bytes_max: int, timeout_s: float = 60.0) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._timeout_s = timeout_s
        self._kept: OrderedDict[TopicPartition, Manifest] = OrderedDict()
        self._bytes = 0
        self._changed: dict[TopicPartition, int] = {}
        self._subscribers: list[OnNewest] = []

    def subscribe(self, on_newest: OnNewest) -> Callable[[], None]:
        """Calls `on_newest` for each manifest read or committed here that is newer than the cached one.

        Its arguments: the topic's name, the manifest, and whether it was committed here. Returns a function that ends that.
        """
        self._subscribers.append(on_newest)
        return lambda: self._subscribers.remove(on_newest)

    def kept(self, partition: TopicPartition) -> Manifest | None:
        """Returns the cached manifest; None where there is none."""
        return self._kept.get(partition)

    async def newest(self, topic: str, partition: TopicPartition) -> Manifest:
        """Returns the cached manifest, or reads it; version 0 where there is none. Raises Corrupt, and what the store raises."""
        manifest = self._kept.get(partition)
        if manifest is None:
            manifest = await self.read_one(topic, partition)
        else:
            self._kept.move_to_end(partition)
        return manifest

    async def read_one(self, topic: str, partition: TopicPartition) -> Manifest:
        """Reads the newest manifest past the cache; version 0 where there is none. Raises as `newest`."""
        manifest = await newest_manifest(self._store, topic, partition) or no_manifest(partition)
        self._keep(topic, manifest)
        return manifest

    async def read(self, topics: Mapping[TopicPartition, str]) -> dict[TopicPartition, Manifest | Corrupt]:
        """Reads many past the cache; a damaged one is returned as Corrupt. Raises what the store raises."""
        read = await newest_manifests(self._store, topics)
        found = {partition: manifest or no_manifest(partition) for partition, manifest in read.items()}
        for partition, manifest in found.items():
            if isinstance(manifest, Manifest):
                self._keep(topics[partition], manifest)
        return found

    async def commit(self, topic: str, manifest: Manifest) -> bool:
        """Creates the manifest, and returns whether this writer was first; else drops the cached one."""
        try:
            won = await commit_manifest(self._store, topic, manifest, timeout_s=self._timeout_s)
        except BaseException:
            self.forget(manifest.topic_partition)
            raise
        if won:
            self._keep(topic, manifest, committed=True)
            self._changed[manifest.topic_partition] = manifest.version
        else:
            self.forget(manifest.topic_partition)
        return won

    def forget(self, partition: TopicPartition) -> None:
        manifest = self._kept.pop(partition, None)
        if manifest is not None:
            self._bytes -= _size_of(manifest)

    def changed(self) -> list[ManifestNotice]:
        """Returns notices of what was committed since the last call."""
        changed, self._changed = self._changed, {}
        return [ManifestNotice(where.topic_id, where.partition, version) for where, version in changed.items()]

    def _keep(self, topic: str, manifest: Manifest, *, committed: bool = False) -> None:
        before = self._kept.get(manifest.topic_partition)
        self.forget(manifest.topic_partition)
        self._kept[manifest.topic_partition] = manifest
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
