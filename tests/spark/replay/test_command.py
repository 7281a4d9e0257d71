"""`tidelog replay` as it is typed: what is refused before Spark starts, and what it says at the end. Without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import spark.runtime.session
from metadata.errors import InvalidArgument, NotFound, TidelogError, UnknownTopic
from spark.replay import replay as replays
from spark.replay.plan import PLAN_FILE, PartitionChoice, ReplayPlan, ReplayRequest, ReplayTarget, Verdict
from spark.runtime.hadoop_files import CONFIGURED_BY
from spark.sink.options import parse_sink_options
from spark.sink.row_encoder import TopicFacts
from spark.source.scan_plan import OffsetRange
from tests.kit.spark.made_log import MadeLog
from tidelog.cli.commands import app

BUCKET = ("replay", "orders", "--bucket", "file:///log")


def typed(*arguments: str) -> tuple[int, str]:
    """Exit code, and what it says."""
    result = CliRunner().invoke(app, [*BUCKET, *arguments])
    if isinstance(result.exception, TidelogError):
        raise result.exception
    return result.exit_code, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ((), "No target is given"),
        (("--into-topic", "a", "--into-parquet", "/b"), "Two targets are given"),
        (("--into-topic", "a"), "--checkpoint is missing"),
        (("--into-table", "a"), "--checkpoint is missing"),
        (("--into-parquet", "/b", "--keep-partitions"), "are of --into-topic"),
        (("--into-parquet", "/b", "--conf", "spark.driver.memory"), "--conf spark.driver.memory has no value"),
        (("--into-parquet", "/b", "--staging", "file:///c"), "are of --into-topic"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused_before_spark_starts(arguments: tuple[str, ...], reported: str) -> None:
    with pytest.raises(InvalidArgument, match=reported) as refused:
        typed(*arguments)
    assert refused.value.hint


class Session:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """In place of Spark's."""
    made = Session()
    monkeypatch.setattr(spark.runtime.session, "check_spark", lambda: None)
    monkeypatch.setattr(spark.runtime.session, "spark_session", lambda *arguments, **options: made)
    return made


def running(
    monkeypatch: pytest.MonkeyPatch, verdict: Verdict | BaseException, *, done: int = 0, keeps: bool = False
) -> list[tuple[ReplayRequest, replays.Running]]:
    calls: list[tuple[ReplayRequest, replays.Running]] = []

    def replay(
        session: Session,
        asked: ReplayRequest,
        running: replays.Running,
        *,
        into: TopicFacts | None,
        began: Callable[[ReplayPlan, int], None],
        report: Callable[[replays.ReplayProgress], None],
    ) -> Verdict:
        calls.append((asked, running))
        began(ReplayPlan(asked, {"orders": {0: OffsetRange(0, 200)}}, {}, keeps), done)
        report(replays.ReplayProgress(200, 200))
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict

    monkeypatch.setattr(replays, "replay", replay)
    monkeypatch.setattr(replays, "check_source", lambda asked, begins: None)
    monkeypatch.setattr(
        replays,
        "target_topic",
        lambda asked, running: TopicFacts(asked.into, "a" * 32, 1, 1 << 20) if asked.target is ReplayTarget.TOPIC else None,
    )
    return calls


def test_the_checkpoint_of_parquet_lies_in_its_folder(monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
    calls = running(monkeypatch, Verdict(200, 200))
    code, said = typed("--into-parquet", "/rows/", "--from", "1h", "--where", "partition = 0", "--batch-offsets", "7")
    assert code == 0
    ((asked, given),) = calls
    assert (asked.start, asked.end, asked.where, asked.target) == ("1h", "latest", "partition = 0", ReplayTarget.PARQUET)
    assert (given.checkpoint, given.batch_offsets, given.brokers) == ("/rows/_checkpoint", 7, "")
    assert "200 offsets of orders into /rows/\n" in said
    assert "200 records are in /rows/, as many as there are in the range; both sides were counted" in said
    assert session.stopped


def test_the_position_to_resume_from_and_the_placement_of_records_are_reported(
    monkeypatch: pytest.MonkeyPatch, session: Session
) -> None:
    calls = running(monkeypatch, Verdict(200, 200), done=50, keeps=True)
    _, said = typed("--into-topic", "kept", "--checkpoint", "/c", "--url", "http://a:8080")
    assert "goes on at 25 %: 200 offsets of orders into kept, each in its partition" in said
    assert calls[0][1].brokers == "http://a:8080"


def test_a_replay_uses_the_credentials_of_the_command_line_and_of_the_context(
    monkeypatch: pytest.MonkeyPatch, session: Session, tmp_path: Path
) -> None:
    calls = running(monkeypatch, Verdict(200, 200))
    contexts = tmp_path / "contexts.toml"
    contexts.write_text('current = "prod"\n[contexts.prod]\nurl = "https://b1:8080"\nca_file = "/ca.pem"\napi_key_file = "/old"\n')
    monkeypatch.setenv("TIDELOG_CONFIG", str(contexts))
    monkeypatch.delenv("TIDELOG_URL", raising=False)
    code, _ = typed("--into-topic", "kept", "--checkpoint", "/c", "--api-key-file", "/key")
    assert code == 0
    ((asked, given),) = calls
    options = replays._sink_options(asked, given)
    assert options == {
        "brokers": "https://b1:8080",
        "bucket": "file:///log",
        "topic": "kept",
        "caFile": "/ca.pem",
        "apiKeyFile": "/key",
    }
    assert dict(parse_sink_options(options).credentials) == {"ca_file": "/ca.pem", "api_key_file": "/key"}


def test_counts_that_differ_are_an_error_with_what_to_do(monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
    running(monkeypatch, Verdict(200, 199))
    code, said = typed("--into-parquet", "/rows")
    assert code == 1
    assert "199 records are in /rows, and 200 in the range" in said
    assert "new --checkpoint" in said


def test_an_interruption_reports_how_to_resume(monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
    running(monkeypatch, KeyboardInterrupt())
    code, said = typed("--into-parquet", "/rows")
    assert code == 130
    assert "Run the same command line again: it goes on from its checkpoint" in said
    assert session.stopped


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*arguments: Any, **options: Any) -> Any:
        raise StartedError

    monkeypatch.setattr(spark.runtime.session, "check_spark", lambda: None)
    monkeypatch.setattr(spark.runtime.session, "spark_session", started)
    for name in CONFIGURED_BY:  # as a Spark that ran in this process before has left them
        monkeypatch.delenv(name, raising=False)


class StartedError(Exception):
    """Spark was started."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "kind", "reported"),
    [
        (("--from", "yesterday"), InvalidArgument, "yesterday"),
        (("--to", "earliest"), InvalidArgument, "--to earliest is no place where a replay can end"),
        (("--from", '{"orders":'), InvalidArgument, "--from .* is malformed"),
        (("--to", '{"orders":{"0":1,"3":1}}'), InvalidArgument, "--to names orders/3, which is no partition of orders"),
        (("--from", '{"ordesr":{"0":1}}'), InvalidArgument, "--from names ordesr/0"),
        (("others",), UnknownTopic, "there is no topic others"),
        (("--from", "5", "--to", "3"), InvalidArgument, "--from 5 lies behind --to 3 in orders/0.*Nothing was written"),
        (("--from", "1h", "--to", "2h"), InvalidArgument, "--from 1h lies behind --to 2h"),
    ],
)
@pytest.mark.usefixtures("no_spark")
def test_unknown_topics_and_invalid_positions_are_reported_before_spark_starts(
    tmp_path: Path, arguments: tuple[str, ...], kind: type[TidelogError], reported: str
) -> None:
    log = MadeLog(tmp_path / "bucket")
    with pytest.raises(kind, match=reported):
        typed("--bucket", log.url, "--into-parquet", str(tmp_path / "rows"), *arguments)
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.usefixtures("no_spark")
def test_a_local_folder_with_files_in_it_is_refused_before_spark_starts(tmp_path: Path, scheme: str) -> None:
    log = MadeLog(tmp_path / "bucket")
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "kept.parquet").touch()
    with pytest.raises(InvalidArgument, match=r"rows is not empty\. Nothing was written"):
        typed("--bucket", log.url, "--into-parquet", f"{scheme}{rows}", "--checkpoint", str(tmp_path / "checkpoint"))


@pytest.mark.parametrize("bounds", [(), ("--from", "1h", "--to", "2020-01-01")])
@pytest.mark.usefixtures("no_spark")
def test_a_resumed_replay_keeps_its_offsets_and_files_in_its_folder(tmp_path: Path, bounds: tuple[str, ...]) -> None:
    log = MadeLog(tmp_path / "bucket")
    checkpoint = tmp_path / "rows" / replays.CHECKPOINT
    checkpoint.mkdir(parents=True)
    (tmp_path / "rows" / "part.parquet").touch()
    (checkpoint / PLAN_FILE).touch()
    assert isinstance(
        CliRunner().invoke(app, [*BUCKET, "--bucket", log.url, "--into-parquet", str(tmp_path / "rows"), *bounds]).exception,
        StartedError,
    )


@pytest.mark.usefixtures("no_spark")
def test_a_folder_that_only_spark_can_check_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MadeLog(tmp_path / "bucket")
    (tmp_path / "kept.parquet").touch()
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    for into in (str(tmp_path), "s3a://bucket/rows"):
        assert isinstance(CliRunner().invoke(app, [*BUCKET, "--bucket", log.url, "--into-parquet", into]).exception, StartedError)


def test_a_resumed_replay_ignores_partitions_that_were_added_since(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "bucket", partitions=3)
    asked = ReplayRequest(
        ("orders",), log.url, '{"orders":{"0":5,"1":5}}', "latest", ReplayTarget.PARQUET, "/rows", "", PartitionChoice.AUTO
    )
    replays.check_source(asked)


def test_a_machine_without_java_is_refused_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise NotFound("there is no Java", hint="Install 17.")

    monkeypatch.setattr(spark.runtime.session, "check_spark", missing)
    with pytest.raises(NotFound, match="there is no Java"):
        typed("--into-parquet", "/rows")
