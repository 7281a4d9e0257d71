"""Manifests of partitions that others lead, read from the bucket when a leader names their version, and kept for the next reader.

    version that the leader names ─▶ held, or a newer one: that ─▶ else GET it, once for all who ask ─▶ gone: the newest

Nothing says here that there is a newer one: a history is used only where the leader names its version, or one before it, in this
moment; or where an object was gone, and this is the newest then. Invariant: an older one never takes the place of a newer one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from metadata.errors import NotFound, TidelogError, Unavailable
from metadata.model import TopicPartition
from segments.history.index import History
from segments.history.manifest import Manifest
from segments.history.manifest_store import newest_manifest, read_manifest
from segments.object_store.interface import ObjectStore
from segments.shared_errors import own_copy

BYTES_MAX: Final = 32 << 20
"""Of all that are held, reckoned; one is held in any case. A partition of 100 GiB has about 1.5 MB."""
MANIFEST_BYTES: Final = 1_000
FILE_BYTES: Final = 500
ROW_GROUP_BYTES: Final = 250
READS_WAITING_MAX: Final = 1_000

_Failed = TidelogError | None
"""An error is a result here: it is for the readers, and must not end the log that owns the task."""


class KnownHistories:
    def __init__(
        self, store: ObjectStore, *, spawn: Callable[[Coroutine[Any, Any, _Failed]], asyncio.Task[_Failed]], read_timeout_s: float
    ) -> None:
        """`spawn` starts a task that belongs to the log: a read goes on when the reader that began it hangs up."""
        self._store = store
        self._spawn = spawn
        self._read_timeout_s = read_timeout_s
        self._held: OrderedDict[TopicPartition, History] = OrderedDict()
        self._readings: dict[TopicPartition, asyncio.Task[_Failed]] = {}
        self.bytes_used = 0

    def held(self, partition: TopicPartition) -> History | None:
        return self._held.get(partition)

    async def of_version(self, topic: str, partition: TopicPartition, version: int) -> History:
        """This one, or a newer one. Raises Unavailable, Corrupt, and what the store raises."""
        for _ in range(2):  # what others have begun to read may be older
            held = self._held.get(partition)
            if held is not None and held.version >= version:
                self._held.move_to_end(partition)
                return held
            await self._read(topic, partition, version)
        held = self._held.get(partition)
        if held is None or held.version < version:
            raise Unavailable(f"the manifest {version} of {partition}, which its leader names, is not there")
        return held

    async def newest(self, topic: str, partition: TopicPartition) -> None:
        """Reads the newest there is: an object was gone. Raises what the store raises."""
        await self._read(topic, partition, None)

    async def _read(self, topic: str, partition: TopicPartition, version: int | None) -> None:
        reading = self._readings.get(partition)
        if reading is None:
            if len(self._readings) >= READS_WAITING_MAX:
                raise Unavailable(f"{READS_WAITING_MAX} manifests are being read")
            reading = self._readings[partition] = self._spawn(self._found(topic, partition, version))
            reading.add_done_callback(lambda _: self._readings.pop(partition, None))
        await asyncio.wait((reading,))  # whoever waits may be cancelled, and disturbs no other
        failed = reading.result() if not reading.cancelled() else Unavailable("the session ended while a manifest was read")
        if failed is not None:
            raise own_copy(failed)

    async def _found(self, topic: str, partition: TopicPartition, version: int | None) -> _Failed:
        """Reads and holds it."""
        try:
            async with asyncio.timeout(self._read_timeout_s):
                manifest = await self._named(topic, partition, version) or await newest_manifest(self._store, topic, partition)
        except TimeoutError:
            return Unavailable(f"the manifest of {partition} could not be read within {self._read_timeout_s:g} s")
        except TidelogError as error:
            return error.with_traceback(None)
        if manifest is None:
            return Unavailable(f"{partition} has no manifest")
        self._hold(History(_for_readers(manifest), topic))
        return None

    async def _named(self, topic: str, partition: TopicPartition, version: int | None) -> Manifest | None:
        """None where it was superseded, and deleted since the leader read it."""
        try:
            return None if version is None else await read_manifest(self._store, topic, partition, version)
        except NotFound:
            return None

    def _hold(self, history: History) -> None:
        partition = history.manifest.place
        held = self._held.get(partition)
        if held is not None and held.version >= history.version:
            return
        if held is not None:
            self.bytes_used -= memory_bytes(held.manifest)
        self._held[partition] = history
        self._held.move_to_end(partition)
        self.bytes_used += memory_bytes(history.manifest)
        while self.bytes_used > BYTES_MAX and len(self._held) > 1:
            _, oldest = self._held.popitem(last=False)
            self.bytes_used -= memory_bytes(oldest.manifest)


def memory_bytes(manifest: Manifest) -> int:
    """About what it takes."""
    groups = sum(len(file.row_groups) for file in manifest.files)
    return MANIFEST_BYTES + FILE_BYTES * len(manifest.files) + ROW_GROUP_BYTES * groups


def _for_readers(manifest: Manifest) -> Manifest:
    """Without what only leaders and compactors need."""
    return msgspec.structs.replace(manifest, producers=(), retired=(), superseded=(), key_passes=())
