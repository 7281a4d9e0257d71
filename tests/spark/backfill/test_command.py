"""`tidelog backfill` as it is typed: errors are reported before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.errors import Unavailable
from tests.kit.spark.made_log import MadeLog
from tidelog.cli.app.errors import BAD_USAGE, FAILED
from tidelog.cli.main import run


def test_a_missing_topic_and_an_invalid_bucket_are_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = MadeLog(tmp_path / "bucket")
    assert run(["backfill", "--bucket", log.url, "--topic", "nowhere"]) == FAILED
    assert "there is no topic nowhere" in capsys.readouterr().err
    assert run(["backfill", "--bucket", "ftp://lake"]) == BAD_USAGE
    assert "is no kind of bucket" in capsys.readouterr().err


def test_the_topics_found_and_the_start_of_spark_are_reported_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []

    def start(*arguments: object, **options: object) -> None:
        reported.append(capsys.readouterr().err)
        raise Unavailable("Spark does not start here")

    monkeypatch.setattr("spark.runtime.session.check_spark", lambda: None)
    monkeypatch.setattr("spark.runtime.session.spark_session", start)
    log = MadeLog(tmp_path / "bucket", partitions=3)
    assert run(["backfill", "--bucket", log.url]) == FAILED
    assert reported == [f"{log.url}: topics 1, partitions 3; starting Spark\n"]


def test_the_help_names_it_among_what_spark_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "backfill" in capsys.readouterr().out.partition("Process it with Spark")[2].partition("\n\n")[0]
