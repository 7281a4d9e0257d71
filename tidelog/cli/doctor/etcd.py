"""Checks an etcd for `tidelog doctor`. Each check returns a diagnosis; none raises. The lease of the one key it writes ends.

etcd HOST    each member: it answers, how fast, its version, whether it has a leader, alarms
etcd         as a broker uses it: the user may read and write under the cluster's prefix; a lease is granted, renewed and ended
cluster      bucket and etcd belong to the same cluster
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from metadata.errors import TidelogError
from metadata.store.interface import Compare, LeaseLost, Put
from tidelog.cli.doctor.diagnosis import Diagnosis, failed

if TYPE_CHECKING:
    from gateway.settings import BrokerSettings
    from metadata.store.etcd.settings import EtcdAddress, EtcdSettings
    from metadata.store.interface import MetadataStore

# Times that each member is asked; the median counts.
ASKED = 5
# A member that takes longer to say who it is delays every change of the cluster, and its elections.
SLOW_MS = 100.0
LEASE_S = 5.0
# Versions that may lose what they acknowledged last when they are killed, and give its revisions to other changes.
# Source: https://github.com/etcd-io/etcd/issues/13766
LOSES_TRANSACTIONS = ("3.5.0", "3.5.1", "3.5.2")
SPACE = "Compact and defragment it, or raise --quota-backend-bytes, then: etcdctl alarm disarm"


async def check_etcd(settings: BrokerSettings, *, bucket_named: bool) -> list[Diagnosis]:
    """Runs all checks of etcd; skips those that need a member that answers if none does."""
    etcd = settings.metadata
    asked = await asyncio.gather(*(_ask_member(etcd, address) for address in etcd.addresses))
    found = [diagnosis for diagnosis, _ in asked]
    clusters = Counter(cluster_id for _, cluster_id in asked if cluster_id)
    if len(clusters) > 1:
        ids = ", ".join(f"{cluster_id:x}" for cluster_id in clusters)
        found.append(Diagnosis("etcd", "failed", f"its members belong to different clusters: {ids}", "Name members of one etcd."))
    elif all(diagnosis.status == "failed" for diagnosis in found):
        found.append(Diagnosis("etcd", "skipped", "no member answers"))
    else:
        found += await _check_as_a_broker(settings, bucket_named)
    return found


async def _ask_member(etcd: EtcdSettings, address: EtcdAddress) -> tuple[Diagnosis, int]:
    """Returns the member's diagnosis, and the id of its etcd cluster; 0 if unknown."""
    import grpc.aio

    from metadata.store.etcd.errors import failure
    from metadata.store.etcd.member import EtcdMember
    from metadata.store.etcd.proto import etcd_pb2

    name = f"etcd {address.target}"
    try:
        member = EtcdMember(address, etcd)
    except TidelogError as error:  # a certificate
        return failed(name, error), 0
    took_ms: list[float] = []
    try:
        for timeout_ms in (etcd.etcd_connect_timeout_ms, *[etcd.etcd_request_timeout_ms] * ASKED):
            began_s = time.perf_counter()
            status: Any = await member.maintenance.Status(etcd_pb2.StatusRequest(), timeout=timeout_ms / 1000)
            took_ms.append((time.perf_counter() - began_s) * 1000)
    except grpc.aio.AioRpcError as error:
        if error.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
            return Diagnosis(name, "ok", "it answers, and tells who it is only to those whom it knows"), 0
        cause = failure(error.code().name, error.details() or "", doing="ask for its status", url=member.url, writes=False).error
        assert isinstance(cause, TidelogError), "a status is no lease and no range"
        return failed(name, cause), 0
    finally:
        await member.close()
    return judge_member(name, status, sorted(took_ms[1:])[ASKED // 2]), status.header.cluster_id


def judge_member(name: str, status: Any, took_ms: float) -> Diagnosis:
    """Judges a member by its StatusResponse, and by the time that it took, in milliseconds. Pure."""
    from metadata.store.etcd.client import VERSION_MIN, parse_version

    detail = f"version {status.version}, {status.dbSize / (1 << 20):.1f} MiB, answers in {took_ms:.1f} ms"
    if parse_version(status.version) < VERSION_MIN:
        return Diagnosis(name, "failed", detail, "Tidelog needs etcd 3.4 or later.")
    if not status.leader:
        return Diagnosis(
            name, "failed", f"it has no leader; {detail}", "Most of etcd's members are down or cut off: bring them back."
        )
    if status.errors:
        remedy = SPACE if any("NOSPACE" in error for error in status.errors) else "See: etcdctl alarm list"
        return Diagnosis(name, "failed", f"{', '.join(status.errors)}; {detail}", remedy)
    if status.isLearner:
        return Diagnosis(name, "warning", f"it is a learner, which answers no reads; {detail}", "Promote it, or leave it out.")
    if status.version in LOSES_TRANSACTIONS:
        detail = f"this version may lose its last acknowledged writes in a crash; {detail}"
        return Diagnosis(name, "warning", detail, "Upgrade to etcd 3.5.3 or later. Records are safe: the bucket has them.")
    if took_ms > SLOW_MS:
        return Diagnosis(name, "warning", detail, "Look at its disk (fsync) and at the network: elections and changes wait for it.")
    return Diagnosis(name, "ok", detail)


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
