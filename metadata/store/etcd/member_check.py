"""Checks the members of an etcd, each by itself: it answers, how fast, its version, whether it has a leader, alarms.

Each check returns a diagnosis; none raises.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import grpc
import grpc.aio

from metadata.diagnosis import Diagnosis, failed
from metadata.errors import TidelogError
from metadata.store.etcd.client import VERSION_MIN, parse_version
from metadata.store.etcd.errors import failure
from metadata.store.etcd.member import EtcdMember
from metadata.store.etcd.proto import etcd_pb2
from metadata.store.etcd.settings import EtcdAddress, EtcdSettings

# Names the check that all members belong to one etcd.
ONE_ETCD = "etcd"
# Times that each member is asked; the median counts.
ASKED = 5
# A member that takes longer to say who it is delays every change of the cluster, and its elections.
SLOW_MS = 100.0
# Versions that may lose what they acknowledged last when they are killed, and give its revisions to other changes.
# Source: https://github.com/etcd-io/etcd/issues/13766
LOSES_TRANSACTIONS = ("3.5.0", "3.5.1", "3.5.2")
SPACE = "Compact and defragment it, or raise --quota-backend-bytes, then: etcdctl alarm disarm"


async def check_members(etcd: EtcdSettings) -> list[Diagnosis]:
    """Checks all members at the same time. A last diagnosis, ONE_ETCD, says that they belong to different clusters."""
    asked = await asyncio.gather(*(check_member(etcd, address) for address in etcd.addresses))
    found = [diagnosis for diagnosis, _ in asked]
    clusters = Counter(cluster_id for _, cluster_id in asked if cluster_id)
    if len(clusters) > 1:
        ids = ", ".join(f"{cluster_id:x}" for cluster_id in clusters)
        found.append(Diagnosis(ONE_ETCD, "failed", f"its members belong to different clusters: {ids}", "Name members of one etcd."))
    return found


async def check_member(etcd: EtcdSettings, address: EtcdAddress) -> tuple[Diagnosis, int]:
    """Returns the member's diagnosis, and the id of its etcd cluster; 0 if unknown."""
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
