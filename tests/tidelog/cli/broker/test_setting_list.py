"""The settings that `--list-settings` shows are those that hold for the command line it stands in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.settings import _known_settings as known_settings
from metadata.errors import InvalidArgument
from tidelog.cli.broker.setting_list import setting_names, setting_rows, shown
from tidelog.cli.main import run


def values(**flags: str) -> dict[str, Any]:
    return {row["setting"]: row["value"] for row in setting_rows(flags, {})}


def test_the_defaults_are_those_of_the_kind_of_bucket() -> None:
    assert (values()["linger_ms"], values()["puts_per_second_max"]) == (5, 400)
    on_s3 = values(bucket="s3://abc/prefix")
    assert (on_s3["linger_ms"], on_s3["puts_per_second_max"]) == (100, 20)


def test_flags_variables_and_a_file_show_in_the_values_and_the_default_stays(tmp_path: Path) -> None:
    toml = tmp_path / "settings.toml"
    toml.write_text("segment_bytes_max = 1048576\ndata_dir = '/var/lib/tidelog'\n")
    rows = {row["setting"]: row for row in setting_rows({"linger_ms": "7"}, {"TIDELOG_BUFFER_BYTES_MAX": "1MiB"}, toml)}
    assert (rows["linger_ms"]["value"], rows["linger_ms"]["default"]) == (7, 5)
    assert rows["buffer_bytes_max"]["value"] == rows["segment_bytes_max"]["value"] == 1 << 20
    assert rows["data_dir"]["value"] == "/var/lib/tidelog"
    assert rows["linger_ms"]["what_it_does"].startswith("A segment is written at the latest")


def test_every_setting_is_listed_once() -> None:
    assert [row["setting"] for row in setting_rows({}, {})] == setting_names()
    assert {"data_dir", "bucket", "linger_ms", "request_bytes_max", "endpoint_url"} <= set(setting_names())
    assert len(set(setting_names())) == len(setting_names())


def test_settings_are_listed_by_what_people_change_first() -> None:
    names = setting_names()
    assert names[:2] == ["data_dir", "bucket"]
    assert names.index("memory_bytes_max") < names.index("read_cache_bytes_max") < names.index("segment_bytes_max")
    assert set(names) == set(known_settings())


def test_parts_of_the_memory_are_listed_with_their_shares() -> None:
    assert values(memory_bytes_max="2GiB")["read_cache_bytes_max"] == 142 << 20


def test_wrong_and_unknown_settings_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="--linger-ms is 'five'"):
        setting_rows({"linger_ms": "five"}, {})
    with pytest.raises(InvalidArgument, match="TIDELOG_FOO is not a setting"):
        setting_rows({}, {"TIDELOG_FOO": "1"})


def test_values_are_shown_as_they_may_be_typed() -> None:
    assert [shown("bytes_max", value) for value in (8 << 20, 64 << 10, 1000)] == ["8MiB", "64KiB", "1000"]
    assert [shown("ms", value) for value in (5.0, 0.1, 10_000.0, None, "")] == ["5", "0.1", "10000", "", ""]


def test_dev_and_serve_list_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["dev", "--list-settings"]) == 0
    shown = capsys.readouterr()
    assert "data_dir  " in shown.out
    assert "tidelog-data" in shown.out
    assert "in a local directory; with --bucket s3://BUCKET/PREFIX some defaults differ" in shown.err
    assert run(["serve", "--list-settings", "--bucket", "s3://abc/x", "--linger-ms", "50"]) == 0
    shown = capsys.readouterr()
    (line,) = (line for line in shown.out.splitlines() if line.startswith("linger_ms"))
    assert line.split()[1] == "50"
    assert line.endswith("Default: 100.")
    assert shown.err == ""
    assert run(["serve", "--list-settings", "-o", "ndjson"]) == 0
    assert [json.loads(line)["setting"] for line in capsys.readouterr().out.splitlines()] == setting_names()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("output", ["table", "json", "ndjson"])
def test_no_credential_of_a_url_is_listed(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = "s3://bucket/p?endpoint=http%3A%2F%2FKEY%3Ahunter2%40127.0.0.1%3A9000&token=hunter2"
    flags = ["--bucket", bucket, "--otlp-endpoint", "https://user:hunter2@collector:4318"]
    for command in ("serve", "compact"):
        run([command, "--list-settings", "-o", output, *flags])
        shown = capsys.readouterr()
        assert "hunter2" not in shown.out + shown.err
        assert "127.0.0.1:9000" in shown.out
