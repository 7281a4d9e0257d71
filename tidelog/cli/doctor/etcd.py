"""Checks an etcd for `tidelog doctor`. Each check returns a diagnosis; none raises. The lease of the one key it writes ends.

etcd HOST    each member: it answers, how fast, its version, whether it has a leader, alarms
etcd         as a broker uses it: the user may read and write under the cluster's prefix; a lease is granted, renewed and ended
cluster      bucket and etcd belong to the same cluster
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from metadata.diagnosis import Diagnosis, failed
from metadata.errors import TidelogError
from metadata.store.interface import Compare, LeaseLost, Put

if TYPE_CHECKING:
    from gateway.settings import BrokerSettings
    from metadata.store.interface import MetadataStore

LEASE_S = 5.0


async def check_etcd(settings: BrokerSettings, *, bucket_named: bool) -> list[Diagnosis]:
    """Runs all checks of etcd; skips those that need a member that answers if none does."""
    from metadata.store.etcd.member_check import ONE_ETCD, check_members

    found = await check_members(settings.metadata)
    if any(diagnosis.check == ONE_ETCD for diagnosis in found):
        return found
    if all(diagnosis.status == "failed" for diagnosis in found):
        found.append(Diagnosis("etcd", "skipped", "no member answers"))
    else:
        found += await _check_as_a_broker(settings, bucket_named)
    return found


async def _check_as_a_broker(settings: BrokerSettings, bucket_named: bool) -> list[Diagnosis]:
    from metadata.store.keys import KeyLayout
    from metadata.store.open import open_metadata

    layout = KeyLayout(settings.cluster)
    try:
        async with open_metadata(settings.metadata, settings.data_dir, prefix=layout.prefix) as store:
            began_s = time.perf_counter()
            await _write_under_a_lease(store, layout.scratch(secrets.token_hex(8)))
            took_ms = (time.perf_counter() - began_s) * 1000
            used = Diagnosis(
                "etcd",
                "ok",
                f"{layout.root} can be read and written; a lease was granted, renewed and ended, all in {took_ms:.1f} ms",
            )
            held = await store.get(layout.cluster_id)
    except LeaseLost:
        return [Diagnosis("etcd", "failed", f"a lease of {LEASE_S:g} s ended at once", "Look into etcd's log, and at its clock.")]
    except TidelogError as error:
        return [failed("etcd", error)]
    in_etcd = held.value.decode(errors="replace") if held is not None else None
    if not bucket_named:
        return [used, Diagnosis("cluster", "skipped", f"etcd holds cluster {in_etcd or '-'}; no bucket is named")]
    return [used, await _check_cluster(settings, in_etcd)]


async def _write_under_a_lease(store: MetadataStore, key: str) -> None:
    lease = await store.grant_lease(LEASE_S)
    try:
        await store.transact([Compare(key, 0)], [Put(key, b"doctor", lease)])
        await store.keep_alive(lease)
    finally:
        await store.revoke_lease(lease)


async def _check_cluster(settings: BrokerSettings, in_etcd: str | None) -> Diagnosis:
    """Checks that the bucket belongs to this cluster."""
    from segments.bucket.cluster_record import read_cluster_record
    from segments.object_store.open import open_store

    try:
        bucket = await open_store(settings.bucket_url, settings.s3)
        try:
            record = await read_cluster_record(bucket)
        finally:
            await bucket.close()
    except TidelogError:
        return Diagnosis("cluster", "skipped", "it fails for the same reason as the bucket")
    on_bucket = record.cluster_id if record is not None else None
    if in_etcd == on_bucket:
        return Diagnosis(
            "cluster", "ok", f"etcd and bucket belong to {in_etcd}" if in_etcd else "neither etcd nor bucket is used yet"
        )
    if on_bucket is None:
        return Diagnosis("cluster", "ok", f"etcd holds cluster {in_etcd}; the first broker makes the bucket its own")
    if in_etcd is None:
        return Diagnosis(
            "cluster",
            "failed",
            f"the bucket belongs to cluster {on_bucket}, and etcd is empty",
            "If etcd's data were lost: tidelog cluster restore. Else name the etcd, or the --cluster, that goes with the bucket.",
        )
    return Diagnosis(
        "cluster", "failed", f"the bucket belongs to cluster {on_bucket}, etcd to {in_etcd}", "Name those that go together."
    )
