"""The command round the recipes, as far as it goes without Spark: what it refuses, and with which exit code."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError

from tidelog.demo import spark as demo_spark
from tidelog.pipelines import aircraft_days, command, hot_keys, hourly_delays, knock_on_delays, latest_by_key, rolling_delays
from tidelog.pipelines.command import NO_SPARK, Pipeline, parser, run_pipeline, shown_spark_error

PIPELINES = [
    hourly_delays.PIPELINE,
    rolling_delays.PIPELINE,
    aircraft_days.PIPELINE,
    knock_on_delays.PIPELINE,
    latest_by_key.PIPELINE,
    hot_keys.PIPELINE,
]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.about)
def test_every_pipeline_takes_a_bucket_and_a_topic_and_those_that_can_a_stream(pipeline: Pipeline) -> None:
    arguments = parser(pipeline).parse_args(["--bucket", "file:///b", "--topic", "t", "--option", "startingTimestamp=5"])
    assert (arguments.bucket, arguments.topic, arguments.option) == ("file:///b", "t", [("startingTimestamp", "5")])
    assert (arguments.into, arguments.checkpoint) == (None, None)
    reported = parser(pipeline).format_help()
    assert ("--into" in reported, "--checkpoint" in reported) == (pipeline.writes, pipeline.writes and pipeline.streams)


@pytest.mark.parametrize(
    ("pipeline", "arguments", "code", "reported"),
    [
        (rolling_delays.PIPELINE, [], 2, "--bucket"),
        (hot_keys.PIPELINE, ["--bucket", "file:///b"], 2, "--topic"),
        (hot_keys.PIPELINE, ["--bucket", "file:///b", "--topic", "t", "--into", "d"], 2, "--into"),
        (rolling_delays.PIPELINE, ["--bucket", "file:///b", "--option", "x"], 2, "'x' is not NAME=VALUE"),
        (rolling_delays.PIPELINE, ["--bucket", "file:///b", "--checkpoint", "d"], 2, "say where to, by --into DIR"),
    ],
)
def test_bad_usage_is_reported_before_spark_is_started(
    pipeline: Pipeline, arguments: Sequence[str], code: int, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--checkpoint" in arguments:
        assert run_pipeline(pipeline, arguments) == code
    else:
        with pytest.raises(SystemExit) as ended:  # of argparse
            run_pipeline(pipeline, arguments)
        assert ended.value.code == code
    assert reported in capsys.readouterr().err


def test_a_library_that_is_not_installed_has_an_exit_code_that_the_demo_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    arguments = ["--bucket", "file:///b", "--chart", str(tmp_path / "c.png")]
    assert run_pipeline(hourly_delays.PIPELINE, arguments) == NO_SPARK == demo_spark.NO_SPARK
    assert "--chart needs matplotlib\n  Install it: pip install 'tidelog[demo]'" in capsys.readouterr().err


def test_a_java_that_does_not_start_is_no_bug_of_ours_and_the_demo_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exits(_name: str, **_options: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(command, "check_spark", lambda: None)
    monkeypatch.setattr(command, "spark_session", exits)
    assert run_pipeline(rolling_delays.PIPELINE, ["--bucket", "file:///b"]) == NO_SPARK
    assert "Error: Spark can't be started: [JAVA_GATEWAY_EXITED]" in capsys.readouterr().err


def test_the_command_that_the_demo_shows_is_one_that_its_pipeline_takes() -> None:
    python, module, name, *arguments = demo_spark.pipeline_command("file:///b", Path("c.png")).split()
    assert (python, module, name) == ("python", "-m", hourly_delays.__name__)
    assert parser(hourly_delays.PIPELINE).parse_args([*arguments, "--json"]).chart == Path("c.png")


def test_a_message_of_the_source_is_found_in_the_traceback_that_spark_makes_of_it() -> None:
    wrapped = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance plan: Traceback (most recent call last):\n"
        '  File "…", line 1\n'
        "pyspark.errors.exceptions.base.PySparkException: there is no topic a on file:///b. Look: tidelog bucket usage\n"
    )
    assert shown_spark_error(wrapped) == "there is no topic a on file:///b. Look: tidelog bucket usage"
    assert (
        shown_spark_error("[PATH_ALREADY_EXISTS] Path file:/d already exists.")
        == "[PATH_ALREADY_EXISTS] Path file:/d already exists."
    )
