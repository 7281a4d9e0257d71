"""Reads the newest manifests of partitions, and commits the next ones.

    LIST ─▶ highest version n ─▶ GET n ─▶ plan (manifest_edits.py) ─▶ create n+1 ─▶ LIST: is it the highest,
                                                                        │          or does the highest name it as superseded?
                                                              another has n+1: lost, plan again

A create that succeeds is not enough. Its writer may have stalled until another's version n+1 was created, superseded and
deleted: then its own n+1 lies below the highest, and does not count. Hence the second listing.

Invariants: of two writers of one version at most one commits; no clock decides; a writer that loses has changed
nothing that counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from awscrt.checksums import crc32c

from metadata.errors import AlreadyExists, Corrupt, NotFound, OutcomeUnknown, Unavailable
from metadata.model import TopicPartition
from metadata.retry import RetryPauses
from segments.bucket.layout import manifest_key, manifests_prefix, parse_topic_key
from segments.bucket.neighbour_listing import list_neighbours, neighbours
from segments.concurrency import gather_all
from segments.history.manifest import Manifest, decode_manifest, encode_manifest
from segments.object_store.interface import ObjectStore

# Bytes. A smaller manifest holds the event loop for a millisecond.
DECODED_IN_A_THREAD: Final = 128 << 10
# Time limit of a create before it is sent again.
TRY_S: Final = 10.0
# Pause between two attempts to create a manifest.
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 2.0
GONE_TRIES: Final = 10
# Pause before a partition is listed again whose newest manifest was superseded and deleted before it was read.
GONE_PAUSE_S: Final = 0.05


async def newest_manifest(store: ObjectStore, topic: str, partition: TopicPartition) -> Manifest | None:
    """Returns the newest manifest; None where nothing was compacted yet. Raises Corrupt, and what the store raises."""
    for _ in range(GONE_TRIES):
        version = (await _newest_versions(store, topic, [partition])).get(partition)
        if version is None:
            return None
        try:
            return await read_manifest(store, topic, partition, version)
        except NotFound:
            await asyncio.sleep(GONE_PAUSE_S)
    raise Unavailable(f"the manifests of {partition} of {topic!r} are deleted faster than they can be read")


async def newest_manifests(
    store: ObjectStore,
    topics: Mapping[TopicPartition, str],
    *,
    known: Mapping[TopicPartition, Manifest] | None = None,
    reads_max: int = 16,
) -> dict[TopicPartition, Manifest | Corrupt | None]:
    """Returns the newest manifests of many partitions, given their topics' names: one listing for neighbours, one GET each.

    A damaged manifest stands as Corrupt in the place of its partition; one that is `known` is not read again while it is the
    newest. Raises what the store raises.
    """
    read_slots = asyncio.Semaphore(reads_max)

    async def versions_of(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        async with read_slots:
            return await _newest_versions(store, topics[partitions[0]], partitions)

    async def read(partition: TopicPartition, version: int) -> Manifest | Corrupt | None:
        held = known.get(partition) if known else None
        if held is not None and held.version == version:
            return held
        async with read_slots:
            try:
                return await read_manifest(store, topics[partition], partition, version)
            except NotFound:  # superseded, and deleted since the listing
                return await newest_manifest(store, topics[partition], partition)
            except Corrupt as error:
                return error

    listed = await gather_all(map(versions_of, neighbours(topics, manifests_prefix)))
    versions = {partition: version for some in listed for partition, version in some.items()}
    manifests = await gather_all(read(partition, version) for partition, version in versions.items())
    found = dict(zip(versions, manifests, strict=True))
    return {partition: found.get(partition) for partition in topics}


async def commit_manifest(store: ObjectStore, topic: str, manifest: Manifest, *, timeout_s: float = 60.0) -> bool:
    """Returns whether this version, of this writer, counts. False: another was first, so read the newest, and plan again.

    An unknown outcome is asked after until it is known. After `timeout_s` raises OutcomeUnknown where the version may exist, or
    may yet, and what the store said where it surely does not.
    """
    key, body = manifest_key(topic, manifest.topic_partition, manifest.version), encode_manifest(manifest)
    checksum = crc32c(body)
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    pauses, may_exist, last = RetryPauses(PAUSE_S, PAUSE_S_MAX), False, "no answer"
    while (left_s := deadline_s - loop.time()) > 0:
        try:
            async with asyncio.timeout(min(TRY_S, left_s)):
                created = False
                try:
                    await store.create(key, [body], crc32c=checksum)
                    created = may_exist = True
                except AlreadyExists:
                    pass  # ours, of a create whose answer was lost, or another's: the lookup tells
                return await _counts(store, topic, manifest, created=created)
        except Unavailable as error:
            last = str(error)
        except (OutcomeUnknown, TimeoutError) as error:
            may_exist, last = True, str(error) or last
        await asyncio.sleep(min(pauses.next_s(), max(0.0, deadline_s - loop.time())))
    what = f"{key} of {store.url} within {timeout_s:g} s: {last}"
    if may_exist:
        raise OutcomeUnknown(f"it is not known whether a manifest was written to {what}", hint="Read the newest one.", key=key)
    raise Unavailable(f"no manifest was written to {what}", key=key)


async def _counts(store: ObjectStore, topic: str, manifest: Manifest, *, created: bool) -> bool:
    """`created`: what stands in its place is surely this one."""
    if (
        created
        and (await _newest_versions(store, topic, [manifest.topic_partition])).get(manifest.topic_partition) == manifest.version
    ):
        return True
    newest = await newest_manifest(store, topic, manifest.topic_partition)
    if newest is None or newest.version < manifest.version:
        return False  # the topic was deleted
    if newest.version == manifest.version:
        return newest.writer == manifest.writer
    return any((one.version, one.writer) == (manifest.version, manifest.writer) for one in newest.superseded)


async def _newest_versions(store: ObjectStore, topic: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the highest version of each that has one. `partitions`: of one life of the topic, in order."""
    first, *_ = partitions
    found: dict[TopicPartition, int] = {}
    folder = manifests_prefix(topic, first).removesuffix(f"{first.partition:05d}/")
    async for info in list_neighbours(store, folder, [manifests_prefix(topic, partition) for partition in partitions]):
        parsed = parse_topic_key(info.key)
        if parsed is not None and parsed.manifest is not None:
            found[TopicPartition(first.topic_id, parsed.manifest.partition)] = parsed.manifest.version  # ascending
    return {partition: found[partition] for partition in partitions if partition in found}


async def read_manifest(store: ObjectStore, topic: str, partition: TopicPartition, version: int) -> Manifest:
    """Raises NotFound, Corrupt, and what else the store raises."""
    key = manifest_key(topic, partition, version)
    body = await store.get(key)
    if len(body) > DECODED_IN_A_THREAD:
        return await asyncio.to_thread(decode_manifest, body, key=key)
    return decode_manifest(body, key=key)
