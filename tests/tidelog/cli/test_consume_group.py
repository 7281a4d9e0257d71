"""`tidelog consume --group`: what it prints it commits, however it ends, and members share."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tidelog
from metadata.errors import InvalidArgument, UnknownGroup
from tests.kit.forked_tidelog import ForkedBroker, run_tidelog
from tests.tidelog.cli.test_consume import a_line_of, consume, following, interrupt
from tidelog.cli.consume import group_reset
from tidelog.cli.main import run
from tidelog.testing.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Whose groups do not wait long for members that may still come."""
    with ForkedBroker(tmp_path_factory.mktemp("groups"), flags=["--group-initial-rebalance-delay-ms", "20"]) as process:
        process.start()
        yield process
        process.stop()


@pytest.fixture
def log(broker: BrokerProcess) -> Iterator[tidelog.BlockingClient]:
    with tidelog.connect_sync(broker.http_url) as client:
        yield client


def with_five(log: tidelog.BlockingClient, topic: str) -> str:
    """A topic with five records, all in partition 1 of two."""
    log.topics.create(topic, partitions=2)
    log.produce_many(topic, [tidelog.Message(f"r{n}", partition=1) for n in range(5)])
    return topic


def values(done: subprocess.CompletedProcess[bytes]) -> list[bytes]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def committed(log: tidelog.BlockingClient, group: str) -> dict[tuple[str, int], int]:
    return {(offset.topic, offset.partition): offset.offset for offset in log.groups.offsets(group)}


def shares(log: tidelog.BlockingClient, group: str) -> list[list[int]]:
    """Of the members of a group that reads one topic."""
    try:
        members = log.groups.describe(group).members
    except UnknownGroup:
        return []
    return sorted(partitions for member in members for partitions in member.assignment.values())


# ── what is committed ──


@pytest.mark.slow
def test_a_group_consumer_resumes_after_the_last_printed_record(broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    topic = with_five(log, "group-five")
    assert values(consume(broker, topic, "--group", "five", "-o", "raw")) == [b"r%d" % n for n in range(5)]
    assert committed(log, "five")[topic, 1] == 5
    again = consume(broker, topic, "--group", "five", "-o", "raw")
    assert (again.returncode, again.stdout, again.stderr) == (0, b"", b"no new records in group-five for group five\n")
    log.produce(topic, "r5", partition=1)
    assert values(consume(broker, topic, "--group", "five", "-o", "raw")) == [b"r5"]
    assert values(consume(broker, topic, "--group", "other", "-n", "1", "-o", "raw")) == [b"r0"]


@pytest.mark.slow
def test_of_a_chunk_that_is_printed_in_part_only_that_part_is_committed(broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    topic = with_five(log, "group-part")
    assert values(consume(broker, topic, "-g", "part", "-n", "2", "-o", "raw")) == [b"r0", b"r1"]
    assert committed(log, "part")[topic, 1] == 2
    assert values(consume(broker, topic, "-g", "part", "-o", "raw")) == [b"r2", b"r3", b"r4"]


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_makes_it_commit_what_it_printed_and_leave_the_group(
    broker: BrokerProcess, log: tidelog.BlockingClient, ending: signal.Signals, code: int
) -> None:
    topic = with_five(log, f"group-{ending.name}")
    with following(broker, topic, "--group", ending.name, "-o", "json") as follower:
        begun = b"".join(a_line_of(follower) for _ in range(5))
        follower.send_signal(ending)
        assert follower.stdout is not None
        assert follower.stderr is not None
        stdout, stderr = follower.stdout.read(), follower.stderr.read()
        assert follower.wait(timeout=60) == code
    assert stderr == b""
    assert len(json.loads(begun + stdout)) == 5, "the document is whole"
    assert committed(log, ending.name)[topic, 1] == 5
    assert log.groups.describe(ending.name).state == "Empty"


@pytest.mark.slow
def test_a_closed_output_pipe_makes_the_member_leave_the_group(broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    topic = with_five(log, "group-head")
    with following(broker, topic, "--group", "head", "-o", "raw") as follower:
        assert a_line_of(follower) == b"r0\n"
        assert follower.stdout is not None
        assert follower.stderr is not None
        follower.stdout.close()
        assert (follower.wait(timeout=60), follower.stderr.read()) == (0, b"")
    group = log.groups.describe("head")
    assert (group.state, group.lag_records) == ("Empty", 0)


def with_long_lines(log: tidelog.BlockingClient, topic: str) -> str:
    """A topic with more than a pipe holds: 200 records of 2,006 bytes, which begin with their offset."""
    log.topics.create(topic, partitions=1)
    log.produce_many(topic, [b"%06d" % n + b"x" * 2_000 for n in range(200)])
    return topic


@pytest.mark.slow
def test_records_that_a_closed_pipe_did_not_take_are_read_again(broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    topic = with_long_lines(log, "group-pipe")
    with following(broker, topic, "--group", "pipe", "-o", "raw") as follower:
        assert a_line_of(follower).startswith(b"000000")
        assert follower.stdout is not None
        follower.stdout.close()
        assert follower.wait(timeout=60) == 0
    taken = committed(log, "pipe")[topic, 0]
    assert 1 <= taken < 100
    again = values(consume(broker, topic, "--group", "pipe", "-o", "raw"))
    assert [int(line[:6]) for line in again] == list(range(taken, 200))


@pytest.mark.slow
def test_ctrl_c_with_a_full_pipe_commits_what_the_pipe_took(broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    topic = with_long_lines(log, "group-pager")
    with following(broker, topic, "--group", "pager", "-o", "raw") as follower:
        first = a_line_of(follower)
        follower.send_signal(signal.SIGINT)
        assert follower.wait(timeout=60) == 130  # while the pipe is not read
        assert follower.stdout is not None
        lines = (first + follower.stdout.read()).splitlines()
    assert [int(line[:6]) for line in lines] == list(range(len(lines)))
    assert {len(line) for line in lines} == {2_006}, "lines are whole"
    assert committed(log, "pager")[topic, 0] == len(lines) < 200


# ── members ──


@pytest.mark.slow
def test_members_share_and_take_over_from_each_other(broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    log.topics.create("group-shared", partitions=2)
    flags = ["group-shared", "--group", "shared", "-F", r"%p %s\n"]
    with following(broker, *flags) as one, following(broker, *flags) as other:
        while shares(log, "shared") != [[0], [1]]:
            time.sleep(0.05)  # no event shows when both have joined
        log.produce_many("group-shared", [tidelog.Message("a", partition=number) for number in range(2)])
        assert sorted([a_line_of(one), a_line_of(other)]) == [b"0 a\n", b"1 a\n"]
        interrupt(other)
        log.produce_many("group-shared", [tidelog.Message("b", partition=number) for number in range(2)])
        assert sorted([a_line_of(one), a_line_of(one)]) == [b"0 b\n", b"1 b\n"]
        interrupt(one)


@pytest.mark.slow
def test_several_topics_are_named_in_a_table(broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    for topic in ("group-t", "group-topic"):
        log.topics.create(topic, partitions=1)
        log.produce(topic, topic)
    for flags in ([], ["--group", "tables"]):
        head, *rows = values(consume(broker, "group-t", "group-topic", "-o", "table", *flags))
        assert head.split()[:3] == [b"TOPIC", b"PART", b"OFFSET"]
        assert sorted((row.split()[0], row.split()[-1]) for row in rows) == [
            (b"group-t", b"group-t"),
            (b"group-topic", b"group-topic"),
        ]
        assert len({row.index(b"2") for row in rows}) == 1, "columns are aligned"
    refused = consume(broker, "group-t", "group-topic", "-p", "0")
    assert (refused.returncode, b"--partition and several topics are given" in refused.stderr) == (2, True)


# ── where it begins ──


@pytest.mark.slow
def test_from_counts_where_nothing_is_committed_and_says_where_it_does_not(
    broker: BrokerProcess, log: tidelog.BlockingClient
) -> None:
    topic = with_five(log, "group-from")
    none = consume(broker, topic, "--group", "from", "--from", "latest", "-o", "raw")
    assert (none.returncode, none.stdout) == (0, b"")
    log.produce(topic, "r5", partition=1)
    done = consume(broker, topic, "--group", "from", "--from", "earliest", "-o", "raw")
    assert values(done) == [b"r5"]
    assert done.stderr.decode().splitlines() == [
        "from goes on where it is in 2 partitions; --from earliest counts only where nothing is committed",
        "  To move it: tidelog group seek from --to earliest",
    ]


@pytest.mark.parametrize(
    ("start", "reset", "expected"),
    [
        (None, None, "earliest"),
        (None, "error", "error"),
        ("latest", None, "latest"),
        ("End", "latest", "latest"),
        ("earliest", "earliest", "earliest"),
    ],
)
def test_where_a_member_begins_what_its_group_has_not_committed(start: Any, reset: Any, expected: str) -> None:
    assert group_reset("g", start, reset, has_partitions=False) == expected


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (("1h", None, False), "--from 1h does not go with --group", "tidelog group seek g --to PLACE"),
        (("-10", None, False), "--from -10 does not go with --group", "tidelog group seek"),
        (("earliest", "latest", False), "contradict each other", "Leave one of them out."),
        ((None, None, True), "--partition and --group are both given", "by itself"),
    ],
)
def test_an_argument_that_does_not_go_with_a_group_is_refused(arguments: Any, said: str, hint: str) -> None:
    start, reset, has_partitions = arguments
    with pytest.raises(InvalidArgument, match=said) as met:
        group_reset("g", start, reset, has_partitions=has_partitions)
    assert hint in met.value.hint


def test_a_group_without_a_name_is_refused_and_not_read_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", "orders", "--group", ""]) == 2
    assert "not a name for a consumer group" in capsys.readouterr().err


@pytest.mark.slow
def test_under_an_instance_id_it_starts_again_without_a_rebalance(broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    topic = with_five(log, "group-static")
    arguments = (topic, "--group", "static", "--instance-id", "till-1", "-o", "raw")
    assert len(values(consume(broker, *arguments))) == 5
    before = log.groups.describe("static")
    assert [member.instance_id for member in before.members] == ["till-1"], "it stays until its session ends"
    assert consume(broker, *arguments).returncode == 0
    assert log.groups.describe("static").generation == before.generation


@pytest.mark.slow
def test_an_instance_id_needs_a_group() -> None:
    done = run_tidelog(["consume", "orders", "--instance-id", "till-1"], timeout_s=120)
    assert done.returncode == 2
    assert b"--instance-id is given without --group" in done.stderr
    assert b"add --group NAME" in done.stderr


# ── and how the group is looked at meanwhile ──


@pytest.mark.slow
def test_a_group_from_its_first_member_to_its_end(broker: BrokerProcess, log: tidelog.BlockingClient) -> None:
    topic = with_five(log, "group-life")

    def group(*arguments: str, code: int = 0) -> tuple[Any, str]:
        done = run_tidelog(["group", *arguments, "--url", broker.http_url], timeout_s=120)
        assert done.returncode == code, done.stderr
        return (json.loads(done.stdout) if done.stdout else None), done.stderr.decode()

    with following(broker, topic, "--group", "life", "-o", "raw") as follower:
        for _ in range(5):
            a_line_of(follower)
        described, _ = group("describe", "life", "-o", "json")
        [member] = described["members"]
        assert (described["state"], member["assignment"], member["client_id"]) == ("Stable", {topic: [0, 1]}, "tidelog")
        assert {lag["member_id"] for lag in described["lags"]} == {member["member_id"]}
        _, refused = group("seek", "life", "--to", "earliest", "--yes", "-o", "json", code=1)
        assert "group life has 1 member" in refused
        assert "`tidelog group describe life --members`" in refused
        interrupt(follower)
    moved, said = group("seek", "life", "--to", "earliest", "--yes", "-o", "json")
    assert [(row["partition"], row["before"], row["after"], row["skipped"]) for row in moved] == [(0, 0, 0, 0), (1, 5, 0, -5)]
    assert said == "life is moved: it will read 5 records again\n"
    assert values(consume(broker, topic, "--group", "life", "-n", "1", "-o", "raw")) == [b"r0"]
    deleted, _ = group("delete-offsets", "life", "-t", f"{topic}:1", "--yes", "-o", "json")
    assert [(row["partition"], row["offset"]) for row in deleted] == [(1, 1)]
    assert group("delete", "life", "--yes") == (None, "life is deleted\n")
    assert "there is no group life" in group("describe", "life", code=1)[1]
