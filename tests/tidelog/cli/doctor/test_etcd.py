"""What the doctor finds in an etcd, and of the bucket that should go with it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.settings import BrokerSettings
from metadata.cluster.identity import cluster_id
from metadata.diagnosis import Diagnosis
from metadata.secret import Secret
from metadata.store.etcd.member_check import LOSES_TRANSACTIONS, SLOW_MS, judge_member
from metadata.store.etcd.proto import etcd_pb2
from metadata.store.etcd.settings import EtcdSettings
from metadata.store.etcd.store import EtcdStore
from metadata.store.keys import KeyLayout
from segments.bucket.cluster_record import sign_bucket
from segments.object_store.open import open_store
from tests.kit.etcd_server import EtcdMember, running_etcd, settings
from tests.kit.servers import free_port
from tidelog.cli.doctor.checks import diagnose
from tidelog.cli.doctor.etcd import check_etcd

GOOD = etcd_pb2.StatusResponse(version="3.5.21", dbSize=3 << 20, leader=7)


def changed(**fields: object) -> etcd_pb2.StatusResponse:
    status = etcd_pb2.StatusResponse()
    status.CopyFrom(GOOD)
    status.MergeFrom(etcd_pb2.StatusResponse(**fields))  # type: ignore[arg-type]  # fields of the message
    return status


def test_a_healthy_member_is_reported_with_its_version_size_and_latency() -> None:
    assert judge_member("etcd a:1", GOOD, 0.44) == Diagnosis("etcd a:1", "ok", "version 3.5.21, 3.0 MiB, answers in 0.4 ms")


@pytest.mark.parametrize(
    ("status", "took_ms", "verdict", "remedy"),
    [
        (changed(version="3.3.27"), 1, "failed", "Tidelog needs etcd 3.4 or later."),
        (etcd_pb2.StatusResponse(version="3.5.1"), 1, "failed", "bring them back"),
        (changed(errors=["memberID:1 alarm:NOSPACE"]), 1, "failed", "etcdctl alarm disarm"),
        (changed(errors=["memberID:1 alarm:CORRUPT"]), 1, "failed", "etcdctl alarm list"),
        (changed(version="3.5.2"), 1, "warning", "Upgrade to etcd 3.5.3"),
        (changed(isLearner=True), 1, "warning", "Promote it"),
        (GOOD, SLOW_MS + 1, "warning", "fsync"),
    ],
)
def test_a_fault_of_a_member_is_reported_with_its_remedy(
    status: etcd_pb2.StatusResponse, took_ms: float, verdict: str, remedy: str
) -> None:
    found = judge_member("etcd a:1", status, took_ms)
    assert found.status == verdict
    assert remedy in found.remedy


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as member:
        yield member


async def known_as(member: EtcdMember, name: str, identity: str) -> None:
    store = EtcdStore(settings(member.url))
    await cluster_id(store, identity, KeyLayout(name))
    await store.close()


async def bucket_of(path: Path, identity: str) -> str:
    store = await open_store(f"file://{path}", make_directory=True)
    await sign_bucket(store, identity, now_ms=1)
    await store.close()
    return f"file://{path}"


def status_of(member: Diagnosis) -> str:
    """Of a healthy member of whatever version there is here."""
    return "warning" if any(f"version {version}," in member.detail for version in LOSES_TRANSACTIONS) else "ok"


@pytest.mark.slow
def test_an_etcd_and_its_bucket_are_well_and_left_as_they_were(etcd: EtcdMember, tmp_path: Path) -> None:
    async def main() -> None:
        await known_as(etcd, "well", "abc")
        bucket = await bucket_of(tmp_path / "bucket", "abc")
        before = etcd.control("get", "/well", "--prefix", "--keys-only")
        found = await diagnose({"etcd": etcd.url, "bucket": bucket, "cluster": "well"}, {}, None, url="")
        assert {check.check: check.status for check in found} | {"column kernel": "ok"} == {
            "versions": "ok",
            "column kernel": "ok",
            "bucket": "ok",
            "create-only PUT": "ok",
            f"etcd 127.0.0.1:{etcd.client_port}": status_of(next(check for check in found if "127.0.0.1" in check.check)),
            "etcd": "ok",
            "cluster": "ok",
        }
        assert found[-1].detail == "etcd and bucket belong to abc"
        assert etcd.control("get", "/well", "--prefix", "--keys-only") == before

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("in_etcd", "status", "said"),
    [
        ("other", "failed", "the bucket belongs to cluster abc, etcd to other"),
        ("", "failed", "the bucket belongs to cluster abc, and etcd is empty"),
    ],
)
def test_a_bucket_of_another_cluster_fails_the_cluster_check(
    etcd: EtcdMember, tmp_path: Path, in_etcd: str, status: str, said: str
) -> None:
    async def main() -> None:
        name = f"not-{in_etcd or 'there'}"
        if in_etcd:
            await known_as(etcd, name, in_etcd)
        bucket = await bucket_of(tmp_path / "bucket", "abc")
        named = BrokerSettings(data_dir=tmp_path, bucket=bucket, cluster=name, metadata=settings(etcd.url))
        found = (await check_etcd(named, bucket_named=True))[-1]
        assert (found.check, found.status, found.detail) == ("cluster", status, said)
        assert found.remedy

    asyncio.run(main())


@pytest.mark.slow
def test_an_etcd_alone_is_looked_at_without_a_bucket_and_a_silent_member_is_named(etcd: EtcdMember) -> None:
    silent = f"127.0.0.1:{free_port()}"
    found = asyncio.run(diagnose({"etcd": f"{etcd.url},http://{silent}"}, {}, None, url=""))
    status = {check.check: check.status for check in found}
    assert status["bucket"] == "skipped"
    assert (status[f"etcd {silent}"], status["etcd"]) == ("failed", "ok")


@pytest.mark.slow
def test_where_no_member_answers_the_rest_is_skipped() -> None:
    silent = f"127.0.0.1:{free_port()}"
    found = asyncio.run(diagnose({"etcd": f"http://{silent}"}, {}, None, url=""))
    assert [check.status for check in found if check.check.startswith("etcd")] == ["failed", "skipped"]


@pytest.mark.slow
def test_a_wrong_password_is_reported_as_such_and_not_printed(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as member:
        for command in ("user add root:right", "user grant-role root root", "auth enable"):
            member.control(*command.split())
        limits: EtcdSettings = settings(member.url)
        wrong = dataclasses.replace(limits, etcd_user="root", etcd_password=Secret("wrong"))
        named = BrokerSettings(data_dir=tmp_path, bucket=f"file://{tmp_path / 'bucket'}", metadata=wrong)
        found = asyncio.run(check_etcd(named, bucket_named=False))
    assert [check.status for check in found] == [status_of(found[0]), "failed"]
    assert "authentication failed" in found[1].detail
    assert "etcd_password" in found[1].remedy
    assert "wrong" not in str(found)
