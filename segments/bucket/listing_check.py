"""Checks that a bucket can be listed and read, and says which cluster uses it."""

from __future__ import annotations

from metadata.diagnosis import Diagnosis, failed
from metadata.errors import TidelogError
from segments.bucket.cluster_record import read_cluster_record
from segments.object_store.interface import ObjectStore


async def check_listing(store: ObjectStore) -> Diagnosis:
    """Returns a diagnosis; raises nothing."""
    try:
        await store.list("wal/", limit=1)
        record = await read_cluster_record(store)
    except TidelogError as error:
        return failed("bucket", error)
    whose = f"of cluster {record.cluster_id}" if record is not None else "not used by a cluster yet"
    return Diagnosis("bucket", "ok", f"{store.url} can be listed and read; {whose}")
