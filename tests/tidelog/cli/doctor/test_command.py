"""What the doctor finds, without leaving anything behind."""

from __future__ import annotations

import asyncio
import email.utils
import http.server
import json
import os
import re
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from gateway.settings import BrokerSettings
from metadata.store.data_directory import DataDirectory
from segments.bucket.listing_check import check_listing
from segments.object_store.memory import MemoryObjectStore
from tests.kit.servers import S3Server
from tidelog.cli.cluster_health import ClusterHealth, UnservedPartition
from tidelog.cli.doctor.checks import (
    check_clock,
    check_create_only,
    check_data_directory,
    judge_cluster,
    least_iam_policy,
    skew,
)
from tidelog.cli.main import run


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        monkeypatch.delenv(name)


def test_a_healthy_machine_exits_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data" / "bucket").mkdir(parents=True)
    assert run(["doctor", "--data-dir", str(tmp_path / "data"), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {check["check"]: check["status"] for check in found["checks"]} | {"column kernel": "ok"} == {
        "versions": "ok",
        "column kernel": "ok",
        "data directory": "ok",
        "bucket": "ok",
        "create-only PUT": "ok",
    }
    assert found["iam_policy"] is None


def test_without_a_bucket_it_checks_the_installation_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    shown = capsys.readouterr()
    assert "→ Add --bucket URL or --data-dir DIR." in shown.out
    assert shown.err == "all is well; skipped: 1\n"


def test_a_data_directory_is_looked_at_and_left_as_it_was(tmp_path: Path) -> None:
    assert "does not exist yet" in check_data_directory(tmp_path / "new" / "data").detail
    assert not (tmp_path / "new").exists()
    assert check_data_directory(tmp_path).status == "ok"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "thesis.doc").write_text("")
    assert check_data_directory(tmp_path).status == "failed"


def test_a_data_directory_that_a_broker_uses_is_well(tmp_path: Path) -> None:
    with DataDirectory(tmp_path):
        found = check_data_directory(tmp_path)
    assert (found.status, "in use by process" in found.detail) == ("ok", True)


def test_a_bucket_that_is_not_there_or_lets_both_creates_win_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--bucket", f"file://{tmp_path}/missing", "--data-dir", str(tmp_path / "d")]) == 3
    assert "1 of 4 checks failed" in capsys.readouterr().err
    assert run(["doctor", "--bucket", f"file://{tmp_path}/missing", "-o", "json"]) == 3
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert "data directory" not in [check["check"] for check in checks], "no option named one"

    class Overwriting(MemoryObjectStore):
        async def create(self, key: str, body: object, *, crc32c: int | None = None) -> None:
            await self.delete(key)
            await super().create(key, body, crc32c=crc32c)  # type: ignore[arg-type]

    found = asyncio.run(check_create_only(Overwriting()))
    assert (found.status, "second create" in found.detail) == ("failed", True)
    assert asyncio.run(check_listing(MemoryObjectStore())).status == "ok"


def test_the_directory_that_dev_makes_by_default_is_looked_at_when_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["doctor", "--data-dir", "tidelog-data", "-o", "json"]) == 0
    assert "data directory" in [check["check"] for check in json.loads(capsys.readouterr().out)["checks"]]


def test_checks_that_depend_on_a_failed_one_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.doc").write_text("")
    assert run(["doctor", "--data-dir", str(tmp_path), "-o", "json"]) == 3
    statuses = {check["check"]: check["status"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert (statuses["data directory"], statuses["bucket"]) == ("failed", "skipped")


@pytest.mark.parametrize("columns", [80, 200])
def test_on_a_terminal_it_fits_and_remedies_stand_below_what_they_mend(
    columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    run(["doctor", "--bucket", f"file://{tmp_path}/missing", "--data-dir", str(tmp_path / "d")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    (remedy,) = (line for line in lines if "→" in line)
    assert remedy.index("→ The directory is missing") == lines[0].index("FOUND")


@pytest.mark.slow
def test_an_unreachable_store_fails_with_its_remedy_and_skips_the_checks_behind_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    url = "s3://abc/p?endpoint=http://127.0.0.1:1&region=us-east-1"
    assert run(["doctor", "--bucket", url, "-o", "json"]) == 3
    checks = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["bucket"]["remedy"] == "Check the endpoint, the network and its proxies, then run this again."
    assert [checks[name]["status"] for name in ("bucket", "create-only PUT", "clock")] == ["failed", "skipped", "skipped"]


class Refusing(http.server.BaseHTTPRequestHandler):
    """A store that refuses everything, an hour ahead of us."""

    def do_HEAD(self) -> None:
        self.send_response_only(403)
        self.send_header("Date", email.utils.formatdate(time.time() + 3600, usegmt=True))
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.slow
def test_a_clock_that_is_off_is_found_though_the_store_refuses_the_request(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            url = f"s3://abc/p?endpoint=http://127.0.0.1:{server.server_port}&region=us-east-1"
            found = check_clock(BrokerSettings(data_dir=tmp_path, bucket=url))
        finally:
            server.shutdown()
            serving.join()
    assert found.status == "failed"
    assert re.search(r"-3(600|599) s off", found.detail)


def test_a_clock_within_the_answers_own_time_has_no_skew() -> None:
    date = email.utils.formatdate(1_767_225_600, usegmt=True)
    assert skew(date, before_s=1_767_225_600.2, after_s=1_767_225_600.9) == 0
    assert skew(date, before_s=1_767_225_590, after_s=1_767_225_591) == -9
    assert skew(date, before_s=1_767_225_700, after_s=1_767_225_701) == 99
    with pytest.raises(ValueError):
        skew("", before_s=0, after_s=0)


def test_the_least_policy_names_the_prefix_and_nothing_else() -> None:
    policy = least_iam_policy("s3://company-logs/tidelog/prod?region=eu-central-1")
    assert policy is not None
    listing, access = policy["Statement"]
    assert (listing["Resource"], listing["Condition"]) == (
        "arn:aws:s3:::company-logs",
        {"StringLike": {"s3:prefix": ["tidelog/prod/*"]}},
    )
    assert access["Resource"] == "arn:aws:s3:::company-logs/tidelog/prod/*"
    assert sorted(access["Action"]) == ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
    whole = least_iam_policy("s3://company-logs")
    assert whole is not None
    assert "Condition" not in whole["Statement"][0]
    assert least_iam_policy("file:///var/lib/tidelog") is None


@pytest.mark.slow
def test_a_bucket_of_s3_is_reached_proved_and_its_clock_compared(
    moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{moto.make_bucket()}/p?endpoint={moto.endpoint_url}&region=us-east-1"
    assert run(["doctor", "--bucket", url, "--data-dir", str(tmp_path), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {check["check"]: check["status"] for check in found["checks"]}["clock"] == "ok"
    assert found["iam_policy"]["Statement"]
    assert run(["doctor", "--bucket", url.replace("s3://", "s3://not-there-"), "--data-dir", str(tmp_path)]) == 3


def test_a_cluster_that_refuses_damaged_partitions_fails_and_the_remedy_is_to_restore_them() -> None:
    damaged = UnservedPartition(
        topic="orders", partition=1, leader="b1", code="CORRUPT", error="wal/1/2 is gone", hint="Restore it."
    )
    well = ClusterHealth(
        cluster_id="c", bucket="s3://b", brokers=[], topics=1, partitions=6, without_leader=0, unserved=[], faults=[]
    )
    assert judge_cluster(well).status == "ok"
    found = judge_cluster(msgspec.structs.replace(well, unserved=[damaged], faults=[f"fault {number}" for number in range(9)]))
    assert (found.status, found.detail) == ("failed", "fault 0; fault 1; fault 2; fault 3; fault 4; …")
    assert found.remedy.startswith("Restore what is damaged from a backup, and restart the brokers that refuse it.")
