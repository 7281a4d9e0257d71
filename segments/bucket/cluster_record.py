"""`cluster.json` on the bucket: which cluster the prefix belongs to, so that two never share one.

    {"cluster_id": "…", "format_version": 1, "created_at_ms": …}

Invariant: created once and never changed; a broker of another cluster, or of an older format, does not start on it.

Whether another cluster's prefix lies around a prefix of the bucket, or within it: asked before a cluster makes it its own.

    s3://bucket/cluster.json            around s3://bucket/team/log       looked for in each prefix above
    s3://bucket/team/cluster.json       around s3://bucket/team/log
    s3://bucket/team/log/eu/cluster.json    within s3://bucket/team/log   looked for in the first pages of a listing

No key of one is a key of the other, so nothing is lost by it at once. But who deletes the outer prefix, sets a lifecycle rule on
it, gives rights to it or restores it from a copy means one cluster and meets two; and where the inner one lies below `wal/` or
`topics/` of the outer one, all that lists these pays for both.

It is a search, not a proof: what may not be read is passed over, and of a listing only the first pages are read.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from metadata.errors import AlreadyExists, Corrupt, NotFound, Rejected
from segments.bucket.layout import CLUSTER
from segments.object_store.interface import ObjectStore
from segments.object_store.open import S3Location, parse_store_url
from segments.object_store.s3.settings import S3Settings

FORMAT_VERSION = 1


class ClusterRecord(msgspec.Struct, frozen=True):
    """Names the cluster that owns the prefix of the bucket."""

    cluster_id: str
    created_at_ms: int
    format_version: int = FORMAT_VERSION


async def read_cluster_record(store: ObjectStore) -> ClusterRecord | None:
    """Returns the record of the prefix; None when no cluster has used it yet. Raises Corrupt."""
    try:
        body = await store.get(CLUSTER)
    except NotFound:
        return None
    try:
        return msgspec.json.decode(body, type=ClusterRecord)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{store.url}: {CLUSTER} can't be read: {error}", key=CLUSTER) from error


async def sign_bucket(store: ObjectStore, cluster_id: str, *, now_ms: int) -> None:
    """Makes the prefix this cluster's, or proves that it is. Rejected when it belongs to another cluster or a newer format."""
    held = await read_cluster_record(store)
    if held is None:
        with contextlib.suppress(AlreadyExists):
            await store.create(CLUSTER, [msgspec.json.encode(ClusterRecord(cluster_id, now_ms))])
        held = await read_cluster_record(store)
        if held is None:
            raise Corrupt(f"{store.url}: {CLUSTER} was created and is gone", key=CLUSTER)
    check_cluster_record(held, store.url, cluster_id)


def check_cluster_record(held: ClusterRecord, url: str, cluster_id: str) -> None:
    """Raises Rejected where the prefix at `url` is another cluster's, or of a newer format."""
    if held.format_version > FORMAT_VERSION:
        raise Rejected(
            f"{url} has format version {held.format_version}; this broker knows {FORMAT_VERSION}",
            hint="Upgrade this broker.",
        )
    if held.cluster_id != cluster_id:
        raise Rejected(
            f"{url} belongs to cluster {held.cluster_id}, but this broker's metadata to cluster {cluster_id}",
            hint="Use another prefix of the bucket, or the metadata that goes with this one.",
            cluster_id=held.cluster_id,
        )


# Pages of the listing, at most: an unused prefix has one unless other programs have put objects there.
PAGES_MAX: Final = 10
LISTING_TIMEOUT_S: Final = 10.0
NAME_ANOTHER: Final = (
    "Clusters may share a bucket, but not a prefix: name one that lies neither above nor below that one. Where that cluster is no "
    "more, delete its objects first."
)


async def check_no_prefix_overlap(bucket: ObjectStore, url: str, s3: S3Settings | None = None) -> None:
    """`bucket` is the open store that `url` names, in which no cluster.json lies yet.

    Raises Rejected where a cluster lies around it or within it, Unavailable where the bucket can't be asked.
    """
    if (around := await _around(url, s3)) is not None:
        outer, record = around
        raise Rejected(
            f"{bucket.url} lies within {outer}, which belongs to cluster {record.cluster_id}",
            hint=NAME_ANOTHER,
            cluster_id=record.cluster_id,
        )
    if (found := await _within(bucket)) is not None:
        key, record = found
        inner = f"{bucket.url}/{key.removesuffix(f'/{CLUSTER}')}"
        raise Rejected(
            f"{inner} belongs to cluster {record.cluster_id}, and lies within {bucket.url}, which was to be the prefix of this one",
            hint=NAME_ANOTHER,
            cluster_id=record.cluster_id,
        )


async def _around(url: str, s3: S3Settings | None) -> tuple[str, ClusterRecord] | None:
    """Returns the nearest cluster around the URL, and where it lies."""
    match parse_store_url(url, s3):
        case Path() as root:
            resolved = await asyncio.to_thread(root.resolve)  # as it lies on the disk, whatever way leads there
            for parent in resolved.parents:
                if (record := await asyncio.to_thread(_read_file, parent / CLUSTER)) is not None:
                    return parent.as_uri(), record
        case S3Location(bucket, prefix, settings) if prefix:
            from segments.object_store.s3.store import S3ObjectStore  # as in object_store/open.py

            store = await S3ObjectStore.open(bucket, "", settings)
            try:
                parts = prefix.split("/")
                for depth in reversed(range(len(parts))):
                    above = "/".join(parts[:depth])
                    if (record := await _read(store, f"{above}/{CLUSTER}" if above else CLUSTER)) is not None:
                        return f"s3://{bucket}/{above}".rstrip("/"), record
            finally:
                await store.close()
    return None


async def _within(bucket: ObjectStore) -> tuple[str, ClusterRecord] | None:
    """Returns the record below the prefix, with its key; None also where the listing is longer than PAGES_MAX."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LISTING_TIMEOUT_S):
            return await _first_listed(bucket)
    return None


async def _first_listed(bucket: ObjectStore) -> tuple[str, ClusterRecord] | None:
    start_after = ""
    for _ in range(PAGES_MAX):
        try:
            page = await bucket.list("", start_after=start_after)
        except Rejected:
            return None
        for info in page.objects:
            if info.key.endswith(f"/{CLUSTER}") and (record := await _read(bucket, info.key)) is not None:
                return info.key, record
        if not page.more or not page.objects:
            return None
        first, last = page.objects[0].key, page.objects[-1].key
        folder = first.partition("/")[0] + "/"
        start_after = f"{folder[:-1]}0" if last.startswith(folder) else last  # "0" is the byte after "/": the folder is passed by
    return None


async def _read(store: ObjectStore, key: str) -> ClusterRecord | None:
    try:
        return _record(await store.get(key))
    except Rejected:  # not there, denied, or more than this store can be asked
        return None


def _read_file(path: Path) -> ClusterRecord | None:
    """Reads the record without a store, which would create and remove files in a directory that is no bucket."""
    try:
        return _record(path.read_bytes()) if path.is_file() else None
    except OSError:
        return None


def _record(body: bytes) -> ClusterRecord | None:
    """Returns the record; None where the file of that name is not Tidelog's."""
    try:
        return msgspec.json.decode(body, type=ClusterRecord)
    except msgspec.MsgspecError:
        return None
