"""What `tidelog bucket` says of places that hold no cluster. Sound and damaged ones: test_against_a_broker.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidelog.cli.main import run


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("command", ["verify", "usage"])
def test_a_bucket_without_a_cluster_is_never_called_sound(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bucket", command, "--bucket", f"file://{tmp_path}"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"no cluster lies at file://{tmp_path}" in shown.err
    assert "Check the bucket and its prefix" in shown.err


def test_a_directory_without_a_bucket_is_reported_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bucket", "verify", "--data-dir", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert f"{tmp_path} holds no bucket" in shown.err
    assert "make it" not in shown.err
