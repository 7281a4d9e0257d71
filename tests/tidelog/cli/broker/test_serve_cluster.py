"""Brokers of a cluster as an operator runs them: processes, an etcd, signals, and what they say on stderr."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kit.etcd_server import running_etcd
from tests.kit.forked_tidelog import TIDELOG, TidelogProcess
from tests.kit.servers import free_port
from tidelog.cli.app import errors as app_errors
from tidelog.cli.main import run

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0


class ServedBroker:
    """One `tidelog serve`. What it says goes to a file."""

    def __init__(self, directory: Path, etcd: str, bucket: str, broker_id: str, flags: Sequence[str]) -> None:
        self.http = f"127.0.0.1:{free_port()}"
        self._said = directory / f"{broker_id}-{self.http.rpartition(':')[2]}.log"
        command = [*TIDELOG, "serve", "--etcd", etcd, "--bucket", bucket, "--broker-id", broker_id]
        command += ["--http", self.http, "--grpc", "127.0.0.1:0", *flags]
        with self._said.open("wb") as said:
            self.process = TidelogProcess[bytes](command, stdout=subprocess.DEVNULL, stderr=said)

    @property
    def url(self) -> str:
        return f"http://{self.http}"

    @property
    def said(self) -> str:
        return self._said.read_text()

    def until_said(self, text: str) -> None:
        until(lambda: text in self.said or self.process.poll() is not None, self)
        assert text in self.said, self.said

    def until_ended(self) -> int:
        return self.process.wait(PATIENCE_S)


def until(happened: Callable[[], bool], broker: ServedBroker) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline_s, broker.said
        time.sleep(0.05)  # another process: there is nothing to wait on


class ServedCluster:
    def __init__(self, directory: Path, etcd: str, processes: ExitStack) -> None:
        self._directory = directory
        self._etcd = etcd
        self._processes = processes
        self.bucket = f"file://{directory / 'bucket'}"

    def start(self, broker_id: str, *flags: str) -> ServedBroker:
        broker = ServedBroker(self._directory, self._etcd, self.bucket, broker_id, flags)
        self._processes.callback(broker.process.wait)
        self._processes.callback(broker.process.kill)
        return broker

    def running(self, *broker_ids: str) -> list[ServedBroker]:
        brokers = [self.start(broker_id) for broker_id in broker_ids]
        for broker in brokers:
            broker.until_said("others reach it at")
        return brokers


@contextmanager
def cluster_in(directory: Path) -> Iterator[ServedCluster]:
    with running_etcd(directory) as etcd, ExitStack() as processes:
        yield ServedCluster(directory, etcd.url, processes)


def test_a_broker_is_drained_through_another_and_sigterm_hands_over_before_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster_in(tmp_path) as cluster:
        first, second = cluster.running("b1", "b2")
        assert run(["topic", "create", "orders", "-p", "8", "--url", first.url]) == 0
        assert run(["cluster", "drain", "b2", "--url", first.url]) == 0
        assert "b2 leads nothing any more; it may be stopped" in capsys.readouterr().err
        assert run(["cluster", "undrain", "b2", "--url", second.url, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["draining"] is False
        first.process.terminate()
        assert first.until_ended() == 0
        assert "partitions to hand over to other brokers" in first.said
        assert first.said.rstrip().endswith("stopped; every acknowledged record is on the bucket")
        assert "Traceback" not in first.said
        second.process.terminate()  # no broker is left to hand over to
        assert second.until_ended() == 0


def test_of_two_brokers_with_one_id_the_older_one_stops_and_says_why(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        [older] = cluster.running("b1")
        [newer] = cluster.running("b1")
        assert older.until_ended() == app_errors.FAILED
        assert "Error: another process has registered as /tidelog/brokers/b1: session 2, at http 127.0.0.1:" in older.said
        assert "Give each broker an id of its own" in older.said
        assert "another process has this id, session 1, at http 127.0.0.1:" in newer.said
        assert "Traceback" not in older.said
        assert newer.process.poll() is None


def test_a_configuration_that_can_not_work_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        for flags, said in [
            (["--http", "0.0.0.0:0"], "advertise_http is not set: clients cannot connect to it"),
            (["--advertise-grpc", "[::]:9090"], "advertise_grpc is [::]:9090, which stands for every interface"),
            (["--etcd-user", "tidelog"], "etcd_password is not set"),
            (["--etcd", "127.0.0.1:2379"], "is not the address of a member"),
        ]:
            broker = cluster.start("b1", *flags)
            assert broker.until_ended() == app_errors.BAD_USAGE
            assert said in broker.said
            assert "Traceback" not in broker.said
        assert not (tmp_path / "bucket").exists()
