"""`tidelog compact` as it is typed: what it does, what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import aiohttp
import pytest

from gateway.process.broker_process import run_broker
from gateway.process.compactor_process import run_compactor
from gateway.settings import DEV, load_settings
from metadata.model import Partition, TopicPartition
from metadata.topics.topic import Topic
from segments.bucket.layout import manifest_key
from segments.log.session_log import FetchTarget
from segments.read.log_reader import FetchResult
from tests.kit.etcd_server import running_etcd
from tests.kit.forked_tidelog import TIDELOG, TidelogProcess
from tests.kit.segments.batches import batch_of, header_of, records_in
from tidelog.cli.broker.compact import conclusion
from tidelog.cli.main import run

pytestmark = pytest.mark.slow

FREE = {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        monkeypatch.delenv(name)


def produced(directory: Path, **settings: object) -> TopicPartition:
    """Ten records, by a broker that was stopped."""

    async def main() -> TopicPartition:
        async with run_broker(load_settings({"data_dir": str(directory), **FREE, **settings}, {})) as broker:
            topic = await broker.create_topic("orders", 1)
            partition = TopicPartition(topic.id, Partition(0))
            for n in range(10):
                batch = batch_of(f"{n}".encode(), timestamps_ms=[time.time_ns() // 1_000_000])
                await broker.log.produce(partition, batch, header_of(batch))
            return partition

    return asyncio.run(main())


def records(directory: Path, partition: TopicPartition) -> list[tuple[int, bytes | None]]:
    async def main() -> list[tuple[int, bytes | None]]:
        async with run_broker(load_settings({"data_dir": str(directory), **FREE}, {})) as broker:
            found: list[tuple[int, bytes | None]] = []
            while len(found) < 10:
                (answer,) = await broker.log.reads.fetch([FetchTarget(partition, len(found), 1 << 20)], bytes_max=1 << 20)
                assert isinstance(answer, FetchResult), answer
                found += records_in(answer.batches, from_offset=len(found))
            return found

    return asyncio.run(main())


def test_all_that_waits_is_compacted_once_and_read_by_the_next_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "data"
    partition = produced(directory)
    command = ["compact", "--data-dir", str(directory), "--once", "-o", "json"]
    assert run(command) == 0
    shown = capsys.readouterr()
    reported = json.loads(shown.out)
    assert (reported["manifests"], reported["pending_bytes"] > 0) == (0, True), "nothing is due yet"
    assert f"{reported['pending_bytes']:,} bytes wait in segments until they are due; --all takes them, too" in shown.err
    assert run([*command, "--all", "--delete-grace-ms", "0"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"manifests": 1, "pending_bytes": 0, "failed": 0, "damaged": 0}
    assert "stay for 0 s (delete_grace_ms), and are deleted by a later run" in shown.err
    assert (directory / "bucket" / manifest_key("orders", partition, 1)).is_file()
    assert records(directory, partition) == [(n, f"{n}".encode()) for n in range(10)]


NOT_DUE = "5 bytes wait in segments until they are due; --all takes them, too"
STAYS = "segments that are in Parquet now stay for 3600 s (delete_grace_ms), and are deleted by a later run"


@pytest.mark.parametrize(
    ("manifests", "bytes_pending", "everything", "said"),
    [
        (0, 0, True, "nothing waits in segments"),
        (0, 5, False, f"nothing went into Parquet: nothing is due; {NOT_DUE}"),
        (0, 1234, True, "nothing went into Parquet: nothing could; 1,234 bytes wait in segments"),
        (2, 0, True, STAYS),
        (2, 5, False, f"{NOT_DUE}; {STAYS}"),
    ],
)
def test_the_conclusion_of_a_pass_describes_its_work_in_words(
    manifests: int, bytes_pending: int, everything: bool, said: str
) -> None:
    assert conclusion(manifests, bytes_pending, everything=everything, grace_s=3600) == said


@pytest.mark.parametrize(
    ("manifests", "bytes_pending", "said"),
    [
        (0, 0, "nothing went into Parquet: nothing could"),
        (0, 5, "nothing went into Parquet: nothing could; 5 bytes wait in segments"),
        (2, 5, f"5 bytes wait in segments; {STAYS}"),
    ],
)
def test_work_that_damage_or_a_failure_holds_up_is_not_reported_as_done_or_not_due(
    manifests: int, bytes_pending: int, said: str
) -> None:
    assert conclusion(manifests, bytes_pending, everything=False, grace_s=3600, hindered=True) == said


def test_a_long_grace_period_is_written_in_digits() -> None:
    assert "stay for 1209600 s" in conclusion(1, 0, everything=True, grace_s=14 * 86_400)


def test_damage_has_its_own_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "data"
    produced(directory)
    segment = min(path for path in (directory / "bucket" / "wal").rglob("0*") if path.is_file() and path.stat().st_size > 100)
    body = segment.read_bytes()
    segment.chmod(0o644)
    segment.write_bytes(body[:100] + bytes([body[100] ^ 1]) + body[101:])
    assert run(["compact", "--data-dir", str(directory), "--once", "--all", "-o", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["damaged"] == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--data-dir", "nowhere"], "is no data directory of a broker"),
        (["--data-dir", "nowhere", "--compaction-due-byte", "5"], "Did you mean '--compaction-due-bytes'?"),
    ],
)
def test_wrong_flags_and_directories_are_refused_and_nothing_is_created(
    flags: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["compact", *flags]) != 0
    assert said in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_a_bucket_of_another_cluster_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "other"):
        produced(tmp_path / name)
    other = f"file://{tmp_path / 'other' / 'bucket'}"
    assert run(["compact", "--data-dir", str(tmp_path / "one"), "--bucket", other, "--once"]) == 1
    assert "belongs to cluster" in capsys.readouterr().err


def test_tidelog_compact_runs_until_sigterm_and_exits_with_success(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    produced(directory)
    command = [*TIDELOG, "compact", "--data-dir", str(directory), "--compaction-due-age-ms", "1"]
    with TidelogProcess[str](command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "compacted:" in line:
                break
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(60) == 0, said


def test_a_compactor_has_a_listener_for_probes_and_prometheus(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    produced(directory)
    flags = {"http": "127.0.0.1:0", "log_format": "json"}
    command = [*TIDELOG, "compact", "--data-dir", str(directory), "--compaction-due-age-ms", "1"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    with TidelogProcess[str](command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = ""
        for line in process.stderr:
            said = json.loads(line)
            if said["event"].startswith("http "):
                url = f"http://{said['event'].removeprefix('http ')}"
            if "compacted:" in said["event"]:
                assert said["compactor_id"]
                break
        assert asked(f"{url}/livez") == (200, '{"status": "ok"}')
        assert asked(f"{url}/readyz")[0] == asked(f"{url}/startupz")[0] == 200
        status, reported = asked(f"{url}/metrics")
        assert status == 200
        assert "tidelog_compaction_records_total 10.0" in reported
        assert 'tidelog_bucket_request_seconds_count{operation="create"}' in reported
        assert "tidelog_metadata_silent_seconds" in reported
        assert "process_resident_memory_bytes" in reported
        assert asked(f"{url}/v1/topics")[0] == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.stderr.read()


def asked(url: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_compactor_that_can_not_read_the_bucket_for_long_is_not_ready(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    produced(directory)

    async def main() -> None:
        settings = load_settings({"data_dir": str(directory), **FREE}, {})
        async with run_compactor(settings, report=lambda _: None) as (service, endpoint), aiohttp.ClientSession() as session:
            url = f"http://{await endpoint.start('127.0.0.1:0')}"

            async def ready() -> int:
                async with session.get(f"{url}/readyz") as answer:
                    return answer.status

            assert await ready() == 503, "it has not looked yet"
            await service.once(everything=False)
            assert await ready() == 200
            state = service.compactor.metrics
            state.failing_since_ms = time.time_ns() // 1_000_000 - 1_000
            assert await ready() == 200, "that may pass"
            state.failing_since_ms -= 600_000
            assert await ready() == 503
            await endpoint.stop()

    asyncio.run(main())


def test_a_compactor_that_comes_before_the_first_broker_waits_for_it(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()

    async def first_broker(common: dict[str, object]) -> None:
        async with run_broker(load_settings({**common, **FREE, "broker_id": "b1", "data_dir": str(tmp_path)}, {})):
            pass

    with running_etcd(tmp_path) as etcd:
        common: dict[str, object] = {"etcd": etcd.url, "bucket": f"file://{bucket}"}
        command = [*TIDELOG, "compact", "--http", "127.0.0.1:0", *(f"--{name}={value}" for name, value in common.items())]
        with TidelogProcess[str](command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            url = f"http://{read_until(process.stderr, ' http ').split(' http ')[1].strip()}"
            read_until(process.stderr, "waiting for the first one")
            assert asked(f"{url}/livez")[0] == asked(f"{url}/startupz")[0] == 200
            status, reported = asked(f"{url}/readyz")
            assert status == 503
            assert "no broker has run yet" in reported
            assert asked(f"{url}/metrics")[0] == 200
            assert list(bucket.iterdir()) == [], "nothing is written meanwhile"
            asyncio.run(first_broker(common))
            read_until(process.stderr, "is at work")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, process.stderr.read()


def test_a_compactor_that_waits_ends_with_sigterm_and_one_that_is_to_look_once_does_not_wait(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with running_etcd(tmp_path) as etcd:
        command = [*TIDELOG, "compact", "--bucket", f"file://{bucket}", "--etcd", etcd.url]
        with TidelogProcess[str](command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            read_until(process.stderr, "waiting for the first one")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, process.stderr.read()
        with TidelogProcess[str]([*command, "--once"], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "Start a broker on them first" in process.stderr.read()
            assert process.wait(60) == 1


def read_until(lines: Iterable[str], said: str) -> str:
    """The line that says so."""
    return next(line for line in lines if said in line)


def test_a_broker_for_development_compacts_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"data_dir": str(tmp_path), **FREE, "compaction_due_age_ms": 1.0, "compaction_interval_ms": 50.0}
        async with run_broker(load_settings(settings, {}, defaults=DEV)) as broker:
            topic: Topic = await broker.create_topic("orders", 1)
            partition = TopicPartition(topic.id, Partition(0))
            batch = batch_of(b"v")
            await broker.log.produce(partition, batch, header_of(batch))
            first = tmp_path / "bucket" / manifest_key("orders", partition, 1)
            async with asyncio.timeout(60):
                while b"tidelog_compaction_records_total 1.0" not in (await broker.metrics.exposition()).body:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert first.is_file()

    asyncio.run(main())
