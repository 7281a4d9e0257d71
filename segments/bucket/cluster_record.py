"""`cluster.json` on the bucket: which cluster the prefix belongs to, so that two never share one.

    {"cluster_id": "…", "format_version": 1, "created_at_ms": …}

Invariant: created once and never changed; a broker of another cluster, or of an older format, does not start on it.
"""

from __future__ import annotations

import contextlib

import msgspec

from metadata.errors import AlreadyExists, Corrupt, NotFound, Rejected
from segments.bucket.layout import CLUSTER
from segments.object_store.interface import ObjectStore

FORMAT_VERSION = 1


class ClusterRecord(msgspec.Struct, frozen=True):
    cluster_id: str
    created_at_ms: int
    format_version: int = FORMAT_VERSION


async def read_cluster_record(store: ObjectStore) -> ClusterRecord | None:
    """What the prefix says, or None when no cluster has used it yet. Raises Corrupt."""
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
    """Rejected where the prefix at `url` is another cluster's, or of a newer format."""
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
