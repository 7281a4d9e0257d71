"""A process finds how much memory it may take: that of the machine, or the limit of a cgroup around it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gateway.process import runtime_tuning
from gateway.process.runtime_tuning import memory_limit_bytes
from gateway.settings import BrokerSettings
from segments.settings import MIB
from tidelog.cli.broker.serve import warn_of_little_memory


def cgroups(root: Path, own: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::{own}\n")
    (root / "sys/fs/cgroup" / own.strip("/")).mkdir(parents=True)
    for path, text in limits.items():
        (root / "sys/fs/cgroup" / path / "memory.max").write_text(f"{text}\n")
    return root


def test_the_least_of_all_cgroups_around_it_counts(tmp_path: Path) -> None:
    root = cgroups(tmp_path, "/pods/one", {"": "8388608", "pods": "4194304", "pods/one": "max"})
    assert memory_limit_bytes(root) == 4 * MIB


def test_a_container_sees_its_own_limit_at_the_root(tmp_path: Path) -> None:
    assert memory_limit_bytes(cgroups(tmp_path, "/", {"": "8388608"})) == 8 * MIB


def test_without_a_limit_it_is_the_memory_of_the_machine(tmp_path: Path) -> None:
    of_machine = memory_limit_bytes(tmp_path / "has no cgroups")
    assert of_machine > 64 * MIB
    assert memory_limit_bytes(cgroups(tmp_path, "/", {"": "max"})) == of_machine


def test_a_process_that_may_take_more_than_there_is_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(runtime_tuning, "memory_limit_bytes", lambda: 512 * MIB)
    with caplog.at_level(logging.WARNING):
        warn_of_little_memory(BrokerSettings(data_dir=tmp_path, memory_bytes_max=512 * MIB))
        assert caplog.text == ""
        warn_of_little_memory(BrokerSettings(data_dir=tmp_path))
    assert "memory_bytes_max is 1GiB, and this machine or container has 512MiB" in caplog.text
