"""How many files a broker may have open."""

from __future__ import annotations

import logging
import resource

import pytest

from gateway.process.runtime_tuning import SPARE, raise_file_limit
from gateway.settings import GatewaySettings


@pytest.mark.parametrize(
    ("hard", "elsewhere", "reported"),
    [(20_000 + SPARE, True, False), (20_000, True, True), (20_000, False, False), (resource.RLIM_INFINITY, True, False)],
)
def test_the_file_limit_is_raised_to_the_hard_limit_and_a_low_one_logged_for_remote_clients(
    hard: int, elsewhere: bool, reported: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [(1_024, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limits.append(given))
    with caplog.at_level(logging.INFO):
        assert raise_file_limit(GatewaySettings(), is_reached_from_elsewhere=elsewhere) == hard
    assert limits[-1] == (hard, hard)
    assert bool(caplog.records) is reported


def test_a_refusal_to_raise_the_file_limit_keeps_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, given: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit(GatewaySettings(), is_reached_from_elsewhere=True) == 1_024
