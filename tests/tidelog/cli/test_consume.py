"""`tidelog consume` as people use it: places to begin that are none, interrupts, pipes that close, brokers that come and go."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tidelog
from tests.kit.forked_tidelog import TIDELOG, ForkedBroker, TidelogProcess, run_tidelog
from tidelog.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.slow

INTERRUPTED = 130


def consume(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Up to its end. No traceback ever reaches its user."""
    done = run_tidelog(["consume", "--url", broker.http_url, *arguments], timeout_s=120)
    assert b"Traceback" not in done.stderr
    assert b"bug in Tidelog" not in done.stderr
    return done


@contextmanager
def following(broker: BrokerProcess, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*TIDELOG, "consume", "--url", broker.http_url, "--follow", *arguments]
    with TidelogProcess[bytes](command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        try:
            yield follower
        finally:
            follower.kill()


def interrupt(follower: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What it still says; not by `communicate`, which leaves out what a line before was buffered with."""
    assert follower.stdout is not None
    assert follower.stderr is not None
    follower.send_signal(signal.SIGINT)
    stdout, stderr = follower.stdout.read(), follower.stderr.read()
    assert follower.wait(timeout=60) == INTERRUPTED
    return stdout, stderr


def a_line_of(follower: subprocess.Popen[bytes]) -> bytes:
    assert follower.stdout is not None
    return follower.stdout.readline()


@pytest.fixture
def log(tidelog_broker: BrokerProcess) -> Iterator[tidelog.BlockingClient]:
    with tidelog.connect_sync(tidelog_broker.http_url) as client:
        yield client


@pytest.fixture(scope="module")
def five(tidelog_broker: BrokerProcess) -> str:
    """A topic with five records in partition 1 of two."""
    with tidelog.connect_sync(tidelog_broker.http_url) as client:
        client.topics.create("consume-five", partitions=2)
        client.produce_many("consume-five", [tidelog.Message(f"r{n}", partition=1) for n in range(5)])
    return "consume-five"


# ── where it begins ──


def test_an_offset_beyond_the_end_is_an_error_that_says_what_there_is(tidelog_broker: BrokerProcess, five: str) -> None:
    done = consume(tidelog_broker, five, "--from", "100", "-p", "1")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"Error: offset 100 of consume-five/1 is outside of [0, 5]: its newest record has offset 4\n" in done.stderr
    assert b"--auto-offset-reset" in done.stderr


def test_partitions_that_have_the_offset_are_read_and_those_that_do_not_are_named(tidelog_broker: BrokerProcess, five: str) -> None:
    done = consume(tidelog_broker, five, "--from", "3", "-o", "raw")
    assert (done.returncode, done.stdout) == (1, b"r3\nr4\n")
    assert b"Error: offset 3 of consume-five/0 is outside of [0, 0]: the partition is empty\n" in done.stderr


def test_an_offset_out_of_range_is_reset_as_auto_offset_reset_says(tidelog_broker: BrokerProcess, five: str) -> None:
    done = consume(tidelog_broker, five, "--from", "100", "--auto-offset-reset", "earliest", "-o", "raw")
    assert (done.returncode, done.stdout.splitlines()) == (0, [b"r%d" % n for n in range(5)])
    assert b"offset 100 of consume-five/1 is outside of [0, 5]" in done.stderr


@pytest.mark.parametrize("start", ["9" * 19, "@" + "9" * 19])
def test_a_number_that_is_no_offset_and_no_time_is_bad_usage(tidelog_broker: BrokerProcess, five: str, start: str) -> None:
    done = consume(tidelog_broker, five, f"--from={start}")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"beyond 64 bits" in done.stderr


@pytest.mark.parametrize("start", ["2099-01-01", "-0"])
def test_where_no_record_is_it_says_so(tidelog_broker: BrokerProcess, five: str, start: str) -> None:
    done = consume(tidelog_broker, five, f"--from={start}")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == f"no records in consume-five from {start} on\n".encode()


def test_an_empty_result_says_that_the_records_were_deleted(tidelog_broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    log.topics.create("consume-trimmed", partitions=1)
    log.produce("consume-trimmed", b"x")
    log.topics.delete_records("consume-trimmed", 0, before=-1)
    reported = consume(tidelog_broker, "consume-trimmed").stderr.decode()
    assert reported.startswith("no records in consume-trimmed from earliest on\nall that were there are deleted")


@pytest.mark.parametrize(("form", "expected"), [("ndjson", b""), ("json", b"[]\n")])
def test_the_tail_of_an_empty_topic_is_an_empty_document(
    tidelog_broker: BrokerProcess, log: tidelog.BlockingClient, form: str, expected: bytes
) -> None:
    topic = f"consume-empty-{form}"
    log.topics.create(topic, partitions=2)
    done = consume(tidelog_broker, topic, "--from", "-10", "-o", form)
    assert (done.returncode, done.stdout) == (0, expected)


def test_a_topic_that_there_is_not_leaves_nothing_on_stdout(tidelog_broker: BrokerProcess) -> None:
    for form in ("table", "json"):
        done = consume(tidelog_broker, "consume-nothing", "-o", form)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"there is no topic consume-nothing" in done.stderr


def test_following_from_a_time_in_the_future_begins_with_what_comes_and_says_so(
    tidelog_broker: BrokerProcess, log: tidelog.BlockingClient
) -> None:
    log.topics.create("consume-future", partitions=1)
    log.produce("consume-future", "before")
    with following(tidelog_broker, "consume-future", "--from", "2099-01-01", "-o", "raw") as follower:
        assert follower.stderr is not None
        assert follower.stderr.readline().startswith(b"2099-01-01 is in the future")
        assert follower.stdout is not None
        while not select.select([follower.stdout], [], [], 0.1)[0]:  # no event shows when it has looked up where to begin
            log.produce("consume-future", "after")
        assert a_line_of(follower) == b"after\n"
        interrupt(follower)


# ── how it ends ──


def test_ctrl_c_leaves_a_whole_document(tidelog_broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    log.topics.create("consume-interrupted", partitions=1)
    log.produce("consume-interrupted", "one")
    with following(tidelog_broker, "consume-interrupted", "-o", "json") as follower:
        begun = a_line_of(follower)
        log.produce("consume-interrupted", "two")
        begun += a_line_of(follower)  # it ends where the second record begins
        stdout, stderr = interrupt(follower)
    assert stderr == b""
    assert [record["value"] for record in json.loads(begun + stdout)] == ["one", "two"]


def test_ctrl_c_on_a_topic_without_records_leaves_an_empty_document(
    tidelog_broker: BrokerProcess, log: tidelog.BlockingClient
) -> None:
    log.topics.create("consume-none", partitions=1)
    master, slave = pty.openpty()
    command = [*TIDELOG, "consume", "--url", tidelog_broker.http_url, "-f", "consume-none", "-o", "json"]
    with TidelogProcess[bytes](command, stdout=subprocess.PIPE, stderr=slave) as follower:
        os.close(slave)
        assert os.read(master, 1000) == b"waiting for records of consume-none; Ctrl-C ends it\r\n"
        follower.send_signal(signal.SIGINT)
        assert follower.stdout is not None
        assert (follower.stdout.read(), follower.wait(timeout=60)) == (b"[]\n", INTERRUPTED)
    os.close(master)


def test_a_closed_output_pipe_ends_the_command_without_another_record(tidelog_broker: BrokerProcess, five: str) -> None:
    with following(tidelog_broker, five, "-o", "raw") as follower:
        assert a_line_of(follower) == b"r0\n"
        assert follower.stdout is not None
        assert follower.stderr is not None
        follower.stdout.close()
        assert (follower.wait(timeout=60), follower.stderr.read()) == (0, b"")


def test_so_many_records_are_written_and_no_more(tidelog_broker: BrokerProcess, five: str) -> None:
    assert consume(tidelog_broker, five, "-n", "3", "-f", "-o", "raw").stdout == b"r0\nr1\nr2\n"


# ── what happens meanwhile ──


def test_each_restart_of_a_killed_broker_is_awaited_and_reported_once(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as broker:
        broker.start()
        with tidelog.connect_sync(broker.http_url, retry_pause_ms_max=100) as log:
            log.topics.create("orders", partitions=2)
            log.produce("orders", "before", partition=0)
            with following(broker, "orders") as follower:
                seen = [json.loads(a_line_of(follower))]
                for number in range(2):
                    broker.kill()
                    broker.start()
                    log.produce("orders", number, partition=0)
                    seen.append(json.loads(a_line_of(follower)))
                _, stderr = interrupt(follower)
        broker.stop()
    assert [(record["offset"], record["value"]) for record in seen] == [(0, "before"), (1, 0), (2, 1)]
    assert len(stderr.splitlines()) == 2, stderr
    assert all(line.endswith(b"; retrying") for line in stderr.splitlines())


def test_a_topic_that_is_deleted_and_made_again_ends_it(tidelog_broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    """A real broker wakes a fetch that waits: the invariant of tidelog/consumer/fetcher.py rests on it."""
    log.topics.create("consume-again", partitions=2)
    log.produce("consume-again", "old", partition=0)
    with following(tidelog_broker, "consume-again", "-o", "raw") as follower:
        assert a_line_of(follower) == b"old\n"
        log.topics.delete("consume-again")
        log.topics.create("consume-again", partitions=2)
        log.produce_many("consume-again", [tidelog.Message("new", partition=0)] * 10)
        assert follower.stdout is not None
        assert follower.stderr is not None
        stdout, stderr = follower.stdout.read(), follower.stderr.read()
    assert (follower.wait(), stdout) == (1, b"")
    assert b"Error: topic consume-again was deleted" in stderr


def test_partitions_that_are_added_are_followed_from_their_start(
    tidelog_broker: BrokerProcess, log: tidelog.BlockingClient
) -> None:
    log.topics.create("consume-grown", partitions=1)
    log.produce("consume-grown", "first", partition=0)
    url = tidelog_broker.http_url
    with tidelog.connect_sync(url, topic_age_ms_max=200, fetch_wait_ms_max=100) as reader, tidelog.connect_sync(url) as writer:
        records = iter(reader.consume("consume-grown"))
        assert next(records).text() == "first"
        log.topics.add_partitions("consume-grown", 3)
        writer.produce_many("consume-grown", [tidelog.Message(n, partition=2) for n in range(50)])
        assert [next(records).json() for _ in range(50)] == list(range(50))


def test_a_damaged_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as broker:
        broker.start()
        with tidelog.connect_sync(broker.http_url) as log:
            log.topics.create("orders", partitions=2)
            for number in range(3):  # a segment for each
                log.produce("orders", f"record {number}", partition=1)
                log.produce("orders", f"record {number}", partition=0)
        broker.kill()
        (damaged,) = [path for path in (broker.data_dir / "bucket" / "wal").rglob("*") if _holds(path, b"record 1", partition=1)]
        body = bytearray(damaged.read_bytes())
        body[body.index(b"record 1") + 7] ^= 1
        damaged.chmod(0o644)
        damaged.write_bytes(body)
        broker.start()
        done = consume(broker, "orders", "-F", "%p %s\\n")
        after = consume(broker, "orders", "-p", "1", "--from", "2", "-o", "raw")
        broker.stop()
    assert done.returncode == 1
    assert sorted(done.stdout.splitlines()) == [b"0 record 0", b"0 record 1", b"0 record 2", b"1 record 0"]
    assert damaged.name.encode() in done.stderr
    assert b"orders/1" in done.stderr
    assert (after.returncode, after.stdout) == (0, b"record 2\n")


def _holds(path: Path, value: bytes, *, partition: int) -> bool:
    """Whether it is the segment of this record: there is one record in each, and partition 1 comes first."""
    return path.is_file() and value in path.read_bytes() and int(path.name, 16) % 2 == 1 - partition
