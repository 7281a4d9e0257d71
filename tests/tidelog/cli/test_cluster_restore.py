"""`tidelog cluster restore` as it is typed: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from gateway.process.broker_process import run_broker
from gateway.settings import load_settings
from segments.bucket.layout import WAL
from tests.kit import etcd_server
from tidelog.cli.main import run

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Of a broker that has a topic, and was stopped; its metadata are lost."""
    directory = tmp_path / "data"

    async def main() -> None:
        settings = load_settings({"data_dir": str(directory), "http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}, {})
        async with run_broker(settings) as broker:
            await broker.create_topic("orders", 3)

    asyncio.run(main())
    for file in directory.glob("metadata.sqlite*"):
        file.unlink()
    return directory


def test_the_broker_that_lost_its_metadata_says_what_to_type_and_that_helps(
    data_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    serve = ["serve", "--data-dir", str(data_dir), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    assert run(serve) == 1
    reported = capfd.readouterr().err
    assert "but the metadata under /tidelog/ are empty" in reported
    assert "tidelog cluster restore" in reported
    assert run(["cluster", "restore", "--yes", "--data-dir", str(data_dir), "-o", "json"]) == 0
    shown = capfd.readouterr()
    restored = json.loads(shown.out)
    assert (restored["restored"], restored["topics_restored"], restored["partitions"]) == (True, 1, 3)
    assert [topic["topic"] for topic in restored["topics"]] == ["orders"]
    assert restored["findings"] == []
    assert "start the brokers" in shown.err

    async def starts() -> list[str]:
        async with run_broker(
            load_settings({"data_dir": str(data_dir), "http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}, {})
        ) as broker:
            return [topic.name for topic in broker.topic_cache.topics()]

    assert asyncio.run(starts()) == ["orders"]


def test_a_table_reports_what_was_restored(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "restore", "--yes", "--data-dir", str(data_dir)]) == 0
    shown = capsys.readouterr().out
    assert "topics restored" in shown
    assert "next session" in shown
    assert "orders" in shown


def test_a_dry_run_changes_nothing(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert run(["cluster", "restore", "--data-dir", str(data_dir), "--dry-run", "-o", "json"]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["topics_found"] == 1
        assert "this was a dry run" in shown.err
        assert "groups, committed offsets, keys, ACLs and quotas are" in shown.err


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "LOCK"}


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool | None], list[str]]:
    """What is said to a question, None where there is no terminal; gives the questions."""

    def answer(yes: bool | None) -> list[str]:
        questions: list[str] = []

        def confirm(question: str, **_: object) -> bool:
            assert yes is not None, "asked without a terminal"
            questions.append(question)
            return yes

        monkeypatch.setattr(sys.stdin, "isatty", lambda: yes is not None)
        monkeypatch.setattr(typer, "confirm", confirm)
        return questions

    return answer


Answered = Callable[[bool | None], list[str]]


def test_without_a_terminal_it_needs_a_yes(data_dir: Path, answered: Answered, capsys: pytest.CaptureFixture[str]) -> None:
    answered(None)
    before = contents(data_dir)
    assert run(["cluster", "restore", "--data-dir", str(data_dir)]) == 2
    assert "--yes; --dry-run shows" in capsys.readouterr().err
    assert contents(data_dir) == before


def test_on_a_terminal_it_shows_what_it_is_about_to_do_and_asks(
    data_dir: Path, answered: Answered, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(data_dir)
    questions = answered(False)
    assert run(["cluster", "restore", "--data-dir", str(data_dir)]) == 1
    shown = capsys.readouterr()
    assert "topics found" in shown.out
    assert "nothing was sealed or written" in shown.err
    [question] = questions
    assert f"with 1 topic will be written from file://{data_dir}/bucket to {data_dir}, and 0 open sessions sealed" in question
    assert "Brokers that were not stopped end by that" in question
    assert contents(data_dir) == before
    assert len(answered(True)) == 0
    assert run(["cluster", "restore", "--data-dir", str(data_dir), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["restored"] is True, "one document, though it was shown what there is"


def test_damage_is_reported_and_ends_the_command_before_it_asks(
    data_dir: Path, answered: Answered, capsys: pytest.CaptureFixture[str]
) -> None:
    session = min((data_dir / "bucket" / WAL).iterdir())
    (session / f"{0:016x}").unlink()
    (session / f"{0:016x}").write_bytes(b"no segment" * 30)
    before = contents(data_dir)
    assert answered(True) == []
    assert run(["cluster", "restore", "--data-dir", str(data_dir)]) == 3
    assert "--despite-damage" in capsys.readouterr().err
    assert run(["cluster", "restore", "--data-dir", str(data_dir), "-o", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["findings"], "the JSON output has the damage, too"
    assert contents(data_dir) == before


def test_a_dry_run_makes_nothing_in_a_data_directory_that_is_not_there(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "new" / "data"
    arguments = ["--bucket", f"file://{data_dir}/bucket", "--data-dir", str(elsewhere)]
    assert run(["cluster", "restore", *arguments, "--dry-run"]) == 0
    assert not elsewhere.parent.exists()


def test_metadata_that_are_there_are_left_alone(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "restore", "--yes", "--data-dir", str(data_dir)]) == 0
    assert run(["cluster", "restore", "--yes", "--data-dir", str(data_dir)]) == 1
    assert "are not empty: appointments (1), cluster_id (1)" in capsys.readouterr().err


def test_damage_stops_it_with_its_own_exit_code(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = min((data_dir / "bucket" / WAL).iterdir())
    (session / f"{0:016x}").unlink()
    (session / f"{0:016x}").write_bytes(b"no segment" * 30)
    assert run(["cluster", "restore", "--yes", "--data-dir", str(data_dir), "-o", "json"]) == 3
    shown = capsys.readouterr()
    assert json.loads(shown.out)["restored"] is False
    assert "--despite-damage" in shown.err
    assert run(["cluster", "restore", "--yes", "--data-dir", str(data_dir), "--despite-damage"]) == 3


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ([], "no metadata store is named"),
        (["--etcd", "http://127.0.0.1:1"], "no bucket is named"),
        (["--etcd", "http://127.0.0.1:1", "--data-dir", "x", "--bucket", "memory://"], "both --etcd and --data-dir are named"),
        (["--etcd", "127.0.0.1", "--bucket", "memory://"], "is not the address of a member"),
        (["--data-dir", "x", "--cluster", "No Name"], "is not a name for a cluster"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_at_once(
    arguments: list[str], reported: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["cluster", "restore", *arguments]) == 2
    assert reported in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_data_directory_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "restore", "--data-dir", str(tmp_path / "mistyped")]) == 1
    assert "holds no bucket" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_cluster_restore_fills_an_empty_etcd(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = tmp_path / "bucket"
    shutil.move(data_dir / "bucket", bucket)
    with etcd_server.running_etcd(tmp_path) as member:
        assert run(["cluster", "restore", "-y", "--bucket", f"file://{bucket}", "--etcd", member.url, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["topics_restored"] == 1
        keys = member.control("get", "/tidelog/", "--prefix", "--keys-only").split()
    assert "/tidelog/topics/orders" in keys
    assert "/tidelog/restoring" not in keys
