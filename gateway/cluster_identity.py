"""Which cluster a broker belongs to: the metadata and the bucket must say the same, so that two never share a prefix.

    metadata    bucket      the broker
    ────────    ────────    ─────────────────────────────────────────────────────────────
    -           -           makes a new cluster
    A           -           signs the bucket as A's (its first start was interrupted)
    A           A           starts
    A           B           refuses: one of the two is the wrong one
    -           B           refuses: the metadata were lost, and must be restored; to begin anew would bury every record
    restoring   any         refuses, until the restore is complete

Invariant: a bucket that holds records is never taken for a new one.
"""

from __future__ import annotations

from metadata.cluster_id import cluster_id
from metadata.errors import Rejected
from metadata.etcd_layout import EtcdLayout
from metadata.restoration import RESTORE_COMMAND, check_not_restoring
from metadata.store import MetadataStore
from segments.bucket_layout import WAL
from segments.cluster_record import read_cluster_record, sign_bucket
from segments.object_store import ObjectStore


async def identify_cluster(bucket: ObjectStore, metadata: MetadataStore, layout: EtcdLayout, *, new_id: str, now_ms: int) -> str:
    """The cluster's id, `new_id` where it is a new one. Raises Rejected as drawn above, Unavailable, Corrupt."""
    await check_not_restoring(metadata, layout)
    # The bucket first: a broker that starts at the same time writes to the metadata first.
    record = await read_cluster_record(bucket)
    written_to = record is not None or bool((await bucket.list(WAL, limit=1)).objects)
    if written_to and await metadata.get(layout.cluster_id) is None:
        owner = f"belongs to cluster {record.cluster_id}" if record is not None else "holds records, though no cluster.json"
        raise Rejected(
            f"{bucket.url} {owner}, but the metadata under {layout.root} are empty",
            hint=f"If they were lost, stop all brokers and run `{RESTORE_COMMAND}`. Else use another prefix of the bucket, or the "
            "metadata (--etcd, --data-dir, --cluster) that go with it.",
            cluster_id=record.cluster_id if record is not None else "",
        )
    identity = await cluster_id(metadata, new_id, layout)
    await sign_bucket(bucket, identity, now_ms=now_ms)
    return identity
