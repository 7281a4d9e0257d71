"""Which S3 server a chaos run gets. What they honour is the object store contract's to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.servers import VERSITY_VERSION, built_versity, chosen_s3_server


def test_a_server_that_the_environment_names_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_TEST_S3_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("TIDELOG_TEST_S3_ACCESS_KEY", "one")
    with chosen_s3_server(tmp_path) as server:
        assert (server.endpoint_url, server.access_key, server.secret_key) == ("http://127.0.0.1:9", "one", "test")


def test_a_server_beyond_the_loopback_is_not_talked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_TEST_S3_ENDPOINT", "http://192.0.2.1:9000")
    with pytest.raises(AssertionError, match="loopback"), chosen_s3_server(tmp_path):
        pass


@pytest.mark.slow
def test_without_go_and_versitygw_it_is_moto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDELOG_TEST_S3_ENDPOINT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert built_versity() is None
    with chosen_s3_server(tmp_path) as server:
        assert server.name == "moto"


def test_a_versitygw_that_was_built_before_is_taken_without_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert built_versity() is None
    directory = tmp_path / "tidelog" / f"versitygw-{VERSITY_VERSION}"
    directory.mkdir(parents=True)
    (directory / "versitygw").touch()
    assert built_versity() == str(directory / "versitygw")


@pytest.mark.slow
def test_a_go_that_can_build_nothing_gives_way_to_moto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho no route to the proxy >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert built_versity() is None
    assert "no route to the proxy" in capsys.readouterr().err
