"""What doctor says of TLS, against real brokers and of certificates alone."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.kit.gateway.tls_brokers import TlsCluster, with_tls_cluster
from tidelog.cli.doctor.checks import check_cluster_at, check_credentials
from tidelog.cli.doctor.tls import check_tls, judge_certificate

NOW = datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)


def certificate(*, days: float) -> Any:
    ends = (NOW + datetime.timedelta(days=days)).strftime("%b %d %H:%M:%S %Y GMT")
    return {"notAfter": ends, "subjectAltName": (("DNS", "broker.example"), ("IP Address", "10.0.0.7"))}


def test_a_certificate_that_ends_soon_is_warned_of() -> None:
    well = judge_certificate("https://a:8080: TLSv1.3", certificate(days=90), now=NOW)
    assert (well.status, well.remedy) == ("ok", "")
    assert well.detail == "https://a:8080: TLSv1.3, a certificate for broker.example, 10.0.0.7, until 2027-02-20 00:00 UTC"
    soon = judge_certificate("https://a:8080: TLSv1.3", certificate(days=3.5), now=NOW)
    assert soon.status == "warning"
    assert soon.detail.endswith("in 3 days")


def test_plain_text_beyond_this_machine_is_warned_of() -> None:
    assert asyncio.run(check_tls("http://localhost:8080", {})) == []
    [found] = asyncio.run(check_tls("http://tidelog.example:8080,grpc://127.0.0.1", {}))
    assert found.status == "warning"
    assert found.detail.startswith("http://tidelog.example:8080: every host on the way")


def test_a_file_with_a_key_has_a_row_of_its_own(tmp_path: Path) -> None:
    missing, key = tmp_path / "nope", tmp_path / "key"
    [found, skipped] = asyncio.run(check_cluster_at("https://127.0.0.1:1", {"api_key_file": missing}))
    assert (found.check, found.status) == ("credentials", "failed")
    assert str(missing) in found.detail
    assert "--api-key-file" in found.remedy
    assert (skipped.check, skipped.status) == ("broker", "skipped")

    key.write_text("tlk_" + "a" * 16 + "_" + "b" * 64)
    key.chmod(0o604)
    [found] = check_credentials({"api_key_file": key})
    assert (found.status, found.remedy) == ("warning", f"chmod o-rwx {key}")
    key.chmod(0o600)
    assert [found.status for found in check_credentials({"api_key_file": str(key)})] == ["ok"]
    assert check_credentials({}) == []


@pytest.mark.slow
def test_doctor_checks_tls_of_both_listeners_and_skips_the_rest_after_a_failure(tmp_path: Path) -> None:
    async def scenario(served: TlsCluster) -> None:
        url = f"https://{served.broker.http_address},grpcs://{served.broker.grpc_address}"
        found = await check_cluster_at(url, served.credentials())
        assert [(one.check, one.status) for one in found] == [
            ("TLS", "warning"),
            ("TLS", "warning"),
            ("broker", "ok"),
            ("partitions", "ok"),
        ], found
        assert "TLSv1.3, a certificate for 127.0.0.1" in found[0].detail
        refused = await check_cluster_at(url, {"ca_file": served.files.ca})
        assert [(one.check, one.status) for one in refused] == [("TLS", "warning"), ("TLS", "failed"), ("broker", "skipped")]
        assert "wants a certificate of this client" in refused[1].detail

    with_tls_cluster(tmp_path, scenario)
