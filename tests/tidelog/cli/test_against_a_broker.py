"""The commands against a real broker, as users run them: processes, pipes, exit codes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit.forked_tidelog import TIDELOG, ForkedBroker, TidelogProcess, run_tidelog
from tidelog.cli.main import run
from tidelog.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.slow


class Shown(NamedTuple):
    stdout: bytes
    stderr: bytes

    @property
    def lines(self) -> list[bytes]:
        return self.stdout.splitlines()

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


class CommandLine:
    """Runs commands in this process: a process for each would cost half a second."""

    def __init__(self, capsys: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, stdin: Path) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self._stdin = stdin

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> Shown:
        self._stdin.write_bytes(stdin)
        with self._stdin.open() as file, self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            found = run(arguments)
        shown = Shown(*self._capsys.readouterr())
        assert found == code, (arguments, shown)
        assert b"Traceback" not in shown.stderr
        return shown


@pytest.fixture
def tidelog(
    tidelog_broker: BrokerProcess, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CommandLine:
    monkeypatch.setenv("TIDELOG_URL", tidelog_broker.http_url)
    return CommandLine(capsysbinary, monkeypatch, tmp_path / "stdin")


def test_a_topic_from_its_creation_to_its_end(tidelog: CommandLine) -> None:
    created = tidelog("topic", "create", "cli-life", "-p", "2", "--set", "retention.ms=1000000", "-o", "json")
    assert json.loads(created.stdout)["settings"] == {"retention.ms": "1000000"}
    again = tidelog("topic", "create", "cli-life", code=1)
    assert b"already exists\n  Nothing was written.\n" in again.stderr
    tidelog("topic", "create", "cli-life", "--if-not-exists")
    tidelog("topic", "alter", "cli-life", "--unset", "retention.ms", "--partitions", "3", "--dry-run")
    altered = tidelog("topic", "alter", "cli-life", "--unset", "retention.ms", "--partitions", "3", "-o", "ndjson")
    assert (altered.documents[0]["partition_count"], altered.documents[0]["settings"]) == (3, {})
    assert "cli-life" in [topic["name"] for topic in tidelog("topic", "list", "-o", "ndjson").documents]
    described = tidelog("topic", "describe", "cli-life")
    assert b"PARTITION  LEADER" in described.stdout
    tidelog("topic", "delete", "cli-life", "--yes")
    assert b"there is no topic cli-life" in tidelog("topic", "describe", "cli-life", code=1).stderr


def test_a_partition_is_trimmed_up_to_an_offset(tidelog: CommandLine) -> None:
    tidelog("topic", "create", "cli-trim", "-p", "1")
    tidelog("produce", "cli-trim", stdin=b"one\ntwo\nthree\n")
    trim = ("topic", "trim", "cli-trim", "--partition", "0", "--before")
    assert b"cli-trim/0 would begin at offset 2; nothing was changed" in tidelog(*trim, "2", "--dry-run").stderr
    assert b"deleting the records of cli-trim/0 before offset 2 needs a yes" in tidelog(*trim, "2", code=2).stderr
    assert tidelog("consume", "cli-trim", "-o", "raw").lines == [b"one", b"two", b"three"]
    assert json.loads(tidelog(*trim, "2", "--yes", "-o", "json").stdout)["log_start_offset"] == 2
    assert tidelog("consume", "cli-trim", "-o", "raw").lines == [b"three"]
    assert b"committed up to 3" in tidelog(*trim, "4", "--yes", code=1).stderr
    assert b"begins at offset 3" in tidelog(*trim, "-1", "--yes").stderr
    assert tidelog("consume", "cli-trim", "-o", "raw").lines == []


def test_lines_go_in_and_come_out_in_every_form(tidelog: CommandLine) -> None:
    tidelog("topic", "create", "cli-lines", "-p", "1")
    done = tidelog("produce", "cli-lines", "-K", ":", "-H", "via=cli", "-o", "json", stdin=b"k1:one\nk2:two\nk3:three")
    assert json.loads(done.stdout)["records"] == 3
    assert tidelog("consume", "cli-lines", "-o", "raw").lines == [b"one", b"two", b"three"]
    assert tidelog("consume", "cli-lines", "-F", "%t/%p@%o %k=%s %h\\n").lines == [
        b"cli-lines/0@0 k1=one via=cli",
        b"cli-lines/0@1 k2=two via=cli",
        b"cli-lines/0@2 k3=three via=cli",
    ]
    assert [document["key"] for document in tidelog("consume", "cli-lines").documents] == ["k1", "k2", "k3"]
    assert len(json.loads(tidelog("consume", "cli-lines", "-o", "json").stdout)) == 3
    assert json.loads(tidelog("consume", "cli-lines", "-o", "json", "--from", "latest").stdout) == []
    assert tidelog("consume", "cli-lines", "-o", "raw", "--from", "-2").lines == [b"two", b"three"]
    assert tidelog("consume", "cli-lines", "-o", "raw", "-n", "1").lines == [b"one"]
    assert b"value: three" in tidelog("consume", "cli-lines", "-o", "yaml", "--from", "2").stdout
    assert len(tidelog("consume", "cli-lines", "-o", "table", "--from", "1h", "-p", "0").lines) == 4


def test_records_that_were_consumed_can_be_produced_again(tidelog: CommandLine) -> None:
    for name in ("cli-source", "cli-copy"):
        tidelog("topic", "create", name, "-p", "2")
    tidelog("produce", "cli-source", "--as", "ndjson", "-k", "id", stdin=b"".join(b'{"id":%d}\n' % n for n in range(50)))
    source = tidelog("consume", "cli-source", "-o", "ndjson")
    tidelog("produce", "cli-copy", "--as", "envelope", "--keep-partition", stdin=source.stdout)
    copy = tidelog("consume", "cli-copy", "-o", "ndjson")
    assert sorted(copy.lines) == sorted(line.replace(b"cli-source", b"cli-copy") for line in source.lines)


def test_a_csv_file_becomes_objects(tidelog: CommandLine, tmp_path: Path) -> None:
    tidelog("topic", "create", "cli-csv", "-p", "1")
    (tmp_path / "a.csv").write_text('city,note\nBonn,"a\nb"\n')
    tidelog("produce", "cli-csv", "-f", str(tmp_path / "a.csv"), "-k", "city", "-z", "zstd")
    assert tidelog("consume", "cli-csv", "-F", "%k %s\\n").lines == [b'Bonn {"city":"Bonn","note":"a\\nb"}']


def test_bad_input_is_reported_with_its_line_and_the_number_of_records_written_before_it(tidelog: CommandLine) -> None:
    tidelog("topic", "create", "cli-bad", "-p", "1")
    done = tidelog("produce", "cli-bad", "--as", "ndjson", stdin=b"1\n2\n{\n4\n", code=2)
    assert b"line 3 of the input is not JSON" in done.stderr
    assert b"2 records before it were acknowledged; nothing else was written." in done.stderr
    assert b"Mend line 3, and send only what begins there: the rest would be there twice." in done.stderr
    assert tidelog("consume", "cli-bad", "-o", "raw").lines == [b"1", b"2"]
    empty = tidelog("produce", "cli-bad", stdin=b"")
    assert empty.stderr == b"the input was empty: nothing was written\n"


def test_a_record_that_is_too_large_is_refused_and_counted_as_such(tidelog: CommandLine) -> None:
    tidelog("topic", "create", "cli-large", "-p", "1")
    done = tidelog("produce", "cli-large", stdin=b"a" * 2_000_000, code=1)
    assert b"line 1 of the input: " in done.stderr
    assert b"Nothing was written." in done.stderr
    done = tidelog("produce", "cli-large", stdin=b"small\n" + b"a" * 2_000_000, code=1)
    assert b"line 2 of the input: " in done.stderr
    assert b"1 record before it was acknowledged; nothing else was written." in done.stderr
    assert tidelog("consume", "cli-large", "-o", "raw").lines == [b"small"]


def test_ctrl_c_during_a_load_reports_the_acknowledged_and_unknown_records(tidelog: CommandLine) -> None:
    bench = [*TIDELOG, "bench", "produce", "-t", "cli-interrupted", "-s", "60"]
    with TidelogProcess[bytes](bench, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as producer:
        assert producer.stderr is not None
        producer.stderr.readline()
        producer.send_signal(signal.SIGINT)
        assert producer.wait(timeout=60) == 130
        last = producer.stderr.read().decode().splitlines()[-1]
    reported = re.fullmatch(r"interrupted: ([0-9,]+) acknowledged, up to ([0-9,]+) more may be in the log", last)
    assert reported is not None, last
    acknowledged, unknown = (int(number.replace(",", "")) for number in reported.groups())
    (described,) = tidelog("topic", "describe", "cli-interrupted", "-o", "ndjson").documents
    assert acknowledged <= described["records"] <= acknowledged + unknown


def test_a_pipe_is_sent_as_it_flows_and_followed_as_it_comes(tidelog: CommandLine) -> None:
    tidelog("topic", "create", "cli-flow", "-p", "1")
    follow = [*TIDELOG, "consume", "cli-flow", "-f", "-o", "raw"]
    with (
        TidelogProcess[bytes]([*TIDELOG, "produce", "cli-flow"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as producer,
        TidelogProcess[bytes](follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as consumer,
    ):
        assert producer.stdin is not None
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        for n in range(3):
            producer.stdin.write(b"line %d\n" % n)
            producer.stdin.flush()
            assert consumer.stdout.readline() == b"line %d\n" % n, "it is there before the pipe ends"
        producer.stdin.close()
        assert producer.wait(timeout=60) == 0
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(timeout=60) == 130
        assert consumer.stderr.read() == b""


def test_a_reader_that_has_enough_is_no_failure(tidelog: CommandLine) -> None:
    tidelog("topic", "create", "cli-head", "-p", "1")
    tidelog("produce", "cli-head", stdin=b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 20_000)
    with TidelogProcess[bytes](
        [*TIDELOG, "consume", "cli-head", "-o", "raw"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as done:
        assert done.stdout is not None
        assert done.stderr is not None
        assert done.stdout.readline() == b"x" * 99 + b"\n"
        done.stdout.close()
        assert (done.wait(timeout=60), done.stderr.read()) == (0, b"")


def test_ctrl_c_ends_a_producer_that_waits_for_its_input(tidelog: CommandLine) -> None:
    tidelog("topic", "create", "cli-wait", "-p", "1")
    with TidelogProcess[bytes](
        [*TIDELOG, "produce", "cli-wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as producer:
        assert producer.stdin is not None
        assert producer.stderr is not None
        producer.stdin.write(b"one\n")
        producer.stdin.flush()
        _until_there(tidelog, "cli-wait", 1)
        producer.send_signal(signal.SIGINT)
        assert producer.wait(timeout=60) == 130
        assert producer.stderr.read() == b"interrupted: 1 acknowledged, up to 0 more may be in the log\n"


def _until_there(tidelog: CommandLine, topic: str, count: int) -> None:
    ends_s = time.monotonic() + 120
    while len(tidelog("consume", topic, "-o", "raw").lines) < count:
        assert time.monotonic() < ends_s, "it never came"


def test_explain_shows_where_a_record_lies(tidelog: CommandLine) -> None:
    tidelog("topic", "create", "cli-explain", "-p", "1")
    tidelog("produce", "cli-explain", stdin=b"a needle\n")
    (found,) = tidelog("explain", "cli-explain", "0", "0", "-o", "ndjson").documents
    for position in (["-p", "0", "0"], ["--partition", "0", "--offset", "0"], ["0", "--offset", "0"]):
        assert tidelog("explain", "cli-explain", *position, "-o", "ndjson").documents == [found]
    path = Path(found["object_url"].removeprefix("file://"))
    assert b"a needle" in path.read_bytes()[found["range_start"] : found["range_end"]]
    tidelog("explain", "cli-explain", "0", "99", code=1)


def test_benchmarks_measure_and_summarise(tidelog: CommandLine) -> None:
    (produced,) = tidelog("bench", "produce", "-n", "20000", "-o", "ndjson", "-p", "2").documents
    (consumed,) = tidelog("bench", "consume", "-o", "ndjson").documents
    (both,) = tidelog("bench", "end-to-end", "-s", "0.5", "-r", "100", "-o", "ndjson").documents
    assert (produced["records"], consumed["records"], both["records"]) == (20_000, 20_000, 50)
    assert both["p50_ms"] > 0
    assert produced["p99_ms"] >= produced["p50_ms"] > 0


def test_the_bucket_is_verified_and_measured_with_the_broker_running(tidelog: CommandLine, tidelog_broker: BrokerProcess) -> None:
    tidelog("topic", "create", "cli-bucket", "-p", "1")
    tidelog("produce", "cli-bucket", stdin=b"x\n")
    directory = str(tidelog_broker.data_dir)
    (found,) = tidelog("bucket", "verify", "--deep", "--data-dir", directory, "-o", "ndjson").documents
    assert (found["sound"], found["findings"]) == (True, [])
    assert found["records_read"]
    shallow = tidelog("bucket", "verify", "--data-dir", directory)
    assert b"no; --deep reads them, and checks every CRC" in shallow.stdout
    (used,) = tidelog("bucket", "usage", "--bucket", f"file://{directory}/bucket", "-o", "ndjson").documents
    assert used["records"] == found["records"]
    assert "cli-bucket" in {topic["topic"] for topic in used["topics"]}
    assert tidelog("doctor", "--data-dir", directory, "--url", tidelog_broker.http_url).stdout.count(b" ok ") >= 5


def test_a_damaged_bucket_exits_3_and_names_the_object(tidelog: CommandLine, tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as broker:
        broker.start()
        tidelog("topic", "create", "t", "-p", "1", "--url", broker.http_url)
        tidelog("produce", "t", "--url", broker.http_url, stdin=b"a\n")
        broker.stop()
        (segment,) = (
            path
            for path in (broker.data_dir / "bucket" / "wal").rglob("*")
            if path.is_file() and path.stat().st_size > 150 and path.name != "claim"
        )
        body = bytearray(segment.read_bytes())
        body[110] ^= 1
        segment.chmod(0o644)
        segment.write_bytes(body)
        done = tidelog("bucket", "verify", "--deep", "--data-dir", str(broker.data_dir), code=3)
    assert segment.name.encode() in done.stdout
    assert b"CRC" in done.stdout


def test_a_broker_ends_cleanly_on_sigterm_and_refuses_a_directory_in_use(tmp_path: Path) -> None:
    def dev(*flags: str) -> list[str]:
        return [
            "dev",
            "--data-dir",
            str(tmp_path / "d"),
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
            "--kafka",
            "127.0.0.1:0",
            *flags,
        ]

    with TidelogProcess[bytes]([*TIDELOG, *dev("-o", "json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stderr is not None
        addresses = json.loads(broker.stdout.readline())
        assert addresses.keys() == {"http_address", "grpc_address", "kafka_address", "bucket"}
        second = run_tidelog(dev(), timeout_s=120)
        assert second.returncode == 1
        assert b"is in use by process" in second.stderr
        host, _, port = addresses["http_address"].rpartition(":")
        elsewhere = ("--data-dir", str(tmp_path / "e"), "--http", addresses["http_address"])
        third = run_tidelog(dev(*elsewhere), timeout_s=120)
        assert third.returncode == 1
        assert f"Error: the port {port} on {host} is taken".encode() in third.stderr
        assert b"--http HOST:PORT" in third.stderr
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(timeout=60) == 0
        said = broker.stderr.read()
    assert b"greetings" not in said, "the welcome is for people"
    assert said.endswith(b"stopped; every acknowledged record is on the bucket\n")
    assert b"Traceback" not in said


def test_a_broker_of_ones_own_welcomes_people_with_what_to_type(tmp_path: Path) -> None:
    command = [
        *TIDELOG,
        "dev",
        "--data-dir",
        str(tmp_path / "d"),
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--kafka",
        "127.0.0.1:0",
    ]
    with TidelogProcess[bytes](command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stderr is not None
        said = [broker.stderr.readline() for _ in range(12)]
        broker.send_signal(signal.SIGTERM)
        assert broker.stdout.read() == b""
        assert broker.wait(timeout=60) == 0
    assert said[2].rstrip().endswith(b"/console   (open it in a browser)")
    assert said[4].startswith(b"  kafka   127.0.0.1:")
    assert said[8].startswith(b"  tidelog topic create greetings --url http://127.0.0.1:")
    assert said[11].startswith(b"  curl -N http://127.0.0.1:")


def test_serve_logs_plainly(tmp_path: Path) -> None:
    command: Sequence[str] = [
        *TIDELOG,
        "serve",
        "--data-dir",
        str(tmp_path / "d"),
        "--bucket",
        f"file://{tmp_path}/b",
        "--http=127.0.0.1:0",
        "--grpc=127.0.0.1:0",
        "-o",
        "json",
        "--linger-ms",
        "7",
    ]
    with TidelogProcess[bytes](command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stderr is not None
        broker.stdout.readline()
        broker.send_signal(signal.SIGINT)
        assert broker.wait(timeout=60) == 0
        said = broker.stderr.read()
    assert b"INFO tidelog: http 127.0.0.1:" in said
    assert said.endswith(b"INFO tidelog: stopped; every acknowledged record is on the bucket\n")
