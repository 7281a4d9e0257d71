"""How the command line answers: exit codes, stdout and stderr, forms of output. Without a broker."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from metadata.errors import InvalidArgument, OutcomeUnknown, UnknownTopic
from tidelog.cli import topics
from tidelog.cli.app import errors as app_errors
from tidelog.cli.app.output import Output, cell, show_one, show_rows
from tidelog.cli.broker import serve
from tidelog.cli.broker.serve import extra_flags
from tidelog.cli.main import run
from tidelog.transport.descriptions import PartitionInfo, TopicInfo

UNREACHABLE = "http://127.0.0.1:1"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["topic", "--help"], ["produce", "-h"], ["bench", "end-to-end", "--help"]])
def test_help_names_the_exit_codes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    shown = capsys.readouterr()
    assert "Exit codes: 0 done, 1 failed, 2 bad usage, 3 unhealthy" in " ".join(shown.out.split())
    assert shown.err == ""


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tidelog ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topc", "list"], "Did you mean 'topic'"),
        (["topic", "crate", "x"], "Did you mean 'create'"),
        (["topic", "create"], "Missing argument"),
        (["topic", "create", "x", "--partitions", "many"], "should be a valid integer"),
        (["topic", "create", "x", "--partitons", "3"], "Did you mean --partitions?"),
        (["topic", "list", "--context", "prod"], "It stands before the command: tidelog --context NAME"),
        (["completion"], "Choose from: bash, zsh, fish"),
        (["topic", "create", "x", "--set", "retention.ms"], "'retention.ms' is not a setting"),
        (["topic", "alter", "x"], "nothing is to be changed"),
        (["topic", "alter", "x", "--set", "a=1", "--unset", "a"], "a is both set and unset"),
        (["topic", "list", "-o", "xml"], "'--output' / '-o': 'xml' is not one of"),
        (["consume", "x", "--from", "yesterday", "--url", UNREACHABLE], "no place to begin"),
        (["consume", "x", "-F", "%x"], "'%x' in the format means nothing"),
        (["consume", "x", "-F", "%s", "-o", "raw"], "--format and --output are both given"),
        (["consume", "x", "-f", "--refuse-outdated"], "--refuse-outdated is given with --follow or --group"),
        (["consume", "x", "-n", "0"], "Invalid value for '--count'"),
        (["produce", "x", "--as", "xml"], "'xml' is not one of"),
        (["produce", "x", "-H", "nothing"], "'nothing' is not a header"),
        (["produce", "x", "-k", "id"], "--key names a field"),
        (["topic", "list", "--url", "ftp://x"], "'ftp://x' is not an address"),
        (["dev", "--lingerms", "5"], "Did you mean '--linger-ms'?"),
        (["dev", "linger"], "'linger' is not a flag"),
        (["serve"], "data_dir is not set"),
        (["serve", "--list-settings", "--lingerms", "5"], "Did you mean '--linger-ms'?"),
        (["serve", "--list-settings", "--linger-ms", "-5"], "linger_ms is -5"),
        (["serve", "--data-dir", "d", "--memory-bytes-max", "64MiB"], "Set memory_bytes_max to 380MiB or more."),
        (["compact", "--data-dir", "d", "--key-map-bytes-max", "1GiB"], "or lower key_map_bytes_max."),
        (["bucket", "verify"], "no bucket is named"),
        (["explain", "x", "-1", "0"], "No such option"),
        (["explain", "x"], "a place is one partition and one offset in it"),
        (["explain", "x", "0"], "a place is one partition and one offset in it"),
        (["explain", "x", "0", "1", "-p", "0"], "a place is one partition and one offset in it"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_bad_usage_prints_one_message_and_exits_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == app_errors.BAD_USAGE
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.startswith("Error: ")
    assert "Traceback" not in shown.err
    assert shown.out == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["topic", "list"], ["topic", "create", "x"], ["consume", "x"], ["explain", "x", "0", "0"], ["bench", "consume"]],
    ids=" ".join,
)
def test_an_unreachable_cluster_is_reported_with_a_remedy_and_exits_1(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--url", UNREACHABLE]) == app_errors.FAILED
    shown = capsys.readouterr()
    assert f"{UNREACHABLE}: can't connect" in shown.err
    assert "tidelog dev" in shown.err
    assert ("Nothing was written." in shown.err) == (arguments[:2] == ["topic", "create"])
    assert shown.out == ""


def test_a_group_alone_shows_its_page_on_stderr_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["topic"]):
        assert run(arguments) == app_errors.BAD_USAGE
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("Usage: tidelog")
        assert "Error" not in shown.err


def test_a_missing_input_file_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["produce", "x", "--file", "/does/not/exist"]) == app_errors.FAILED
    assert "/does/not/exist can't be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("bucket", "usage"), ("bucket", "verify"), ("doctor",)])
def test_a_bucket_that_is_named_without_its_option_gets_a_hint(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "s3://lake/log"]) == app_errors.BAD_USAGE
    assert "The bucket is an option: --bucket s3://lake/log" in capsys.readouterr().err
    assert run(["topic", "list", "s3://lake/log"]) == app_errors.BAD_USAGE
    assert "--bucket" not in capsys.readouterr().err


def test_a_question_that_ends_without_an_answer_changes_nothing_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = io.StringIO("")
    monkeypatch.setattr(asked, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", asked)
    assert run(["topic", "delete", "x", "--url", UNREACHABLE]) == app_errors.FAILED
    assert capsys.readouterr().err.endswith("\nnot answered: nothing was changed\n")


def test_deleting_without_a_terminal_needs_a_yes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "delete", "x", "--url", UNREACHABLE]) == app_errors.BAD_USAGE
    assert "Add --yes" in capsys.readouterr().err


# ── failures ──


def raising(error: BaseException) -> Callable[[], object]:
    def command() -> object:
        raise error

    return command


def test_each_kind_of_failure_has_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert app_errors.guarded(lambda: None) == 0
    assert app_errors.guarded(lambda: app_errors.UNHEALTHY) == 3
    assert app_errors.guarded(raising(UnknownTopic("there is no topic x"))) == 1
    assert app_errors.guarded(raising(InvalidArgument("x is not a number"))) == 2
    assert app_errors.guarded(raising(OSError("the disk is on fire"))) == 1
    assert app_errors.guarded(raising(OSError(28, "No space left on device"))) == 1
    assert app_errors.guarded(raising(BaseExceptionGroup("tasks", [ExceptionGroup("more", [UnknownTopic("no topic y")])]))) == 1
    shown = capsys.readouterr().err
    assert "Error: reading or writing failed: No space left on device" in shown
    assert "Error: no topic y" in shown
    assert "a bug in Tidelog" not in shown
    assert "Error: there is no topic x\n  Create it first: tidelog topic create NAME" in shown
    assert "the disk is on fire" in shown


def test_an_interrupt_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert app_errors.guarded(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_an_interrupt_while_everything_is_loaded_is_quiet() -> None:
    program = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from tidelog.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (130, "")


def test_partitions_without_a_leader_are_left_out_of_the_sum(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = (
        PartitionInfo(partition=0, leader="b", leader_epoch=1, log_start_offset=2, high_watermark=9),
        PartitionInfo(partition=1, leader="", leader_epoch=-1, log_start_offset=0, high_watermark=-1),
    )
    topic = TopicInfo(name="x", id="0", partition_count=2, settings={}, created_at_ms=0, partitions=partitions)
    monkeypatch.setattr(topics, "with_client", lambda url, command: topic)
    assert run(["topic", "describe", "x", "-o", "json"]) == 0
    shown = capsys.readouterr()
    described = json.loads(shown.out)
    assert (described["records"], described["partitions"][1]["high_watermark"]) == (7, None)
    assert "1 of 2 partitions have no leader now: their records are unknown, and not counted" in shown.err


def test_partitions_that_could_not_be_asked_are_reported_as_not_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = PartitionInfo(
        partition=1, leader="b2", leader_epoch=1, log_start_offset=0, high_watermark=-1, error="no answer", hint="Retry."
    )
    served = PartitionInfo(partition=0, leader="b1", leader_epoch=1, log_start_offset=0, high_watermark=7)
    topic = TopicInfo(name="x", id="0", partition_count=2, settings={}, created_at_ms=0, partitions=(served, silent))
    monkeypatch.setattr(topics, "with_client", lambda url, command: topic)
    assert run(["topic", "describe", "x"]) == 0
    shown = capsys.readouterr()
    assert "1 of 2 partitions could not be asked: their records are unknown, and not counted" in shown.err
    assert "7 days from their timestamps (retention.ms, by default)" in shown.out


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({}, "7 days from their timestamps (retention.ms, by default)"),
        ({"retention.ms": "3600000"}, "1 hour from their timestamps (retention.ms)"),
        ({"retention.ms": "-1"}, "without limit"),
        ({"retention.ms": "90500"}, "90500 ms from their timestamps (retention.ms)"),
        ({"retention.ms": "0"}, "0 ms from their timestamps (retention.ms)"),
        ({"retention.ms": "-1", "retention.bytes": "5000"}, "5,000 bytes a partition at most (retention.bytes)"),
        ({"cleanup.policy": "compact"}, "the newest record of each key (cleanup.policy=compact)"),
        (
            {"cleanup.policy": "compact,delete", "retention.ms": "60000"},
            "1 minute from their timestamps (retention.ms), the newest record of each key (cleanup.policy)",
        ),
        ({"of.a.newer.version": "1"}, "7 days from their timestamps (retention.ms, by default)"),
    ],
)
def test_the_retention_of_a_topic_is_described_in_words(settings: dict[str, str], reported: str) -> None:
    assert topics.kept(settings) == reported


def test_a_note_of_what_was_written_stands_between_what_happened_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    error = OutcomeUnknown("the connection was lost")
    error.add_note("The 7 records before it were written.")
    app_errors.guarded(raising(error))
    happened, written, remedy = capsys.readouterr().err.splitlines()
    assert (happened, written) == ("Error: the connection was lost", "  The 7 records before it were written.")
    assert remedy.strip() == OutcomeUnknown.default_hint


def test_a_bug_of_ours_shows_a_traceback_only_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDELOG_DEBUG", raising=False)
    assert app_errors.guarded(raising(ZeroDivisionError("by zero"))) == 1
    shown = capsys.readouterr().err
    assert "this is a bug in Tidelog: ZeroDivisionError: by zero" in shown
    assert "Traceback" not in shown
    monkeypatch.setenv("TIDELOG_DEBUG", "1")
    app_errors.guarded(raising(ZeroDivisionError("by zero")))
    assert "Traceback" in capsys.readouterr().err


def test_a_long_message_is_broken_between_words_and_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/var/lib/" + "x" * 60
    error = InvalidArgument(
        f"the data directory {path} holds something else\nand here is more", hint="Name an empty directory. " * 5
    )
    app_errors.guarded(raising(error))
    assert capsys.readouterr().err.splitlines()[0] == f"Error: the data directory {path} holds something else"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    app_errors.guarded(raising(error))
    lines = capsys.readouterr().err.replace("\x1b[1;31m", "").replace("\x1b[0m", "").splitlines()
    assert lines[:3] == ["Error: the data directory", f"  {path}", "  holds something else"]
    assert all(len(line) <= 60 for line in lines if path not in line)


# ── output ──

ROWS = [{"name": "a", "count": 5, "more": {"x": "1"}}, {"name": "long name", "count": 1200, "more": {}}]


def test_rows_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, Output.TABLE, columns=("name", "count", "more"))
    assert capsys.readouterr().out == "NAME       COUNT  MORE\na              5  x=1\nlong name   1200  -\n"
    show_rows(ROWS, Output.JSON)
    assert json.loads(capsys.readouterr().out) == ROWS
    show_rows(ROWS, Output.YAML)
    assert yaml.safe_load(capsys.readouterr().out) == ROWS
    show_rows(ROWS, Output.NDJSON)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS


@pytest.mark.parametrize(("width", "fits"), [(40, False), (80, True)])
def test_a_terminal_that_is_too_narrow_for_all_columns_gets_the_main_ones_and_a_hint(
    width: int, fits: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"name": "a" * 30, "files": 1, "bytes": 2_000_000}]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    show_rows(rows, Output.TABLE, narrow=("name", "bytes"))
    reported = capsys.readouterr()
    assert ("BYTES" in reported.out, "FILES" in reported.out, "tells more" in reported.err) == (True, fits, not fits)
    show_rows(rows, Output.JSON, narrow=("name", "bytes"))
    assert json.loads(capsys.readouterr().out) == rows


def test_counts_have_thousands_separators_and_values_to_copy_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    show_one({"records": 1_053_042, "batch_bytes": 90_735_898, "high_watermark": 1_053_042, "offset": 12_345}, Output.TABLE)
    assert capsys.readouterr().out == (
        "records         1,053,042\nbatch bytes     90,735,898\nhigh watermark  1053042\noffset          12345\n"
    )


def test_a_cell_of_several_lines_keeps_the_columns_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([{"check": "bucket", "found": "broken\n→ mend it", "x": 1}], Output.TABLE)
    assert capsys.readouterr().out == "CHECK   FOUND      X\nbucket  broken     1\n        → mend it\n"


def test_nothing_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([], Output.TABLE, columns=("name",))
    assert capsys.readouterr().out == "NAME\n"
    show_rows([], Output.JSON)
    assert json.loads(capsys.readouterr().out) == []
    show_rows([], Output.NDJSON)
    assert capsys.readouterr().out == ""


def test_one_thing_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(ROWS[0], Output.TABLE)
    assert capsys.readouterr().out == "name   a\ncount  5\nmore   x=1\n"
    show_one(ROWS[0], Output.NDJSON)
    assert capsys.readouterr().out == '{"name":"a","count":5,"more":{"x":"1"}}\n'


def test_cells_are_for_people() -> None:
    assert [cell(value) for value in (None, True, False, 1234.5, [], ["a", 1], "", 0)] == [
        "-",
        "yes",
        "no",
        "1,234.50",
        "-",
        "a, 1",
        "-",
        "0",
    ]


# ── dev and serve ──


def test_every_setting_is_a_flag() -> None:
    assert extra_flags(["--linger-ms", "250", "--segment-bytes-max=4MiB", "--x=a=b"]) == {
        "linger_ms": "250",
        "segment_bytes_max": "4MiB",
        "x": "a=b",
    }
    for wrong in (["--linger-ms"], ["250"], ["-x", "1"], ["--"]):
        with pytest.raises(InvalidArgument):
            extra_flags(wrong)


@pytest.mark.slow
def test_a_bucket_that_is_unreachable_at_the_start_is_reported_with_the_doctor_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    url = "s3://abc/p?endpoint=http://127.0.0.1:1&region=us-east-1"
    assert run(["serve", "--bucket", url, "--data-dir", str(tmp_path / "d")]) == app_errors.FAILED
    said = capsys.readouterr().err
    assert "no connection" in said
    assert f"Check the address and the network; `tidelog doctor --bucket '{url}'` looks at each step." in said
    assert "Retry with back-off" not in said


def test_a_second_interrupt_ends_a_broker_that_is_stopping_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    stopping = asyncio.Event()
    broker: Any = SimpleNamespace(stopping=stopping, stop=stopping.set)
    serve.interrupted(broker)
    assert (stopping.is_set(), ended) == (True, [])
    serve.interrupted(broker)
    assert ended == [app_errors.INTERRUPTED]


# ── start-up ──


@pytest.mark.slow
def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from tidelog.cli.main import run; run(['--help']); "
        "print(sorted({'grpc', 'pyarrow', 'numpy', 'asyncio', 'fastapi', 'boto3', 'yaml'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr.strip() == "[]"


@pytest.mark.slow
def test_standard_streams_that_the_caller_closed_lead_nowhere() -> None:
    command = f"{sys.executable} -m tidelog.cli.main topic list --url {UNREACHABLE}"
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == app_errors.FAILED, (closed, done)
        assert ("can't connect" in done.stderr) == ("2>&-" not in closed)


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_reported(unbuffered: str) -> None:
    surroundings = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tidelog.cli.main", "--version"]
        done = subprocess.run(command, env=surroundings, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "Error: reading or writing failed: No space left on device\n")


# ── completion ──


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_TIDELOG_COMPLETE" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [("tidelog to", ["topic"]), ("tidelog topic cr", ["create"]), ("tidelog topic list -o y", ["yaml"])],
    ids=str,
)
def test_shell_completion_returns_the_words_that_may_follow(words: str, expected: list[str]) -> None:
    asked = {**os.environ, "_TIDELOG_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-m", "tidelog.cli.main"]
    done = subprocess.run(command, env=asked, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout.split(), done.stderr) == (expected, "")
