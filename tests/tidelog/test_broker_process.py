"""A broker as a child process, and what is told when it does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.errors import Unavailable
from tidelog.broker_process import BrokerProcess


def test_a_broker_that_does_not_start_is_told_in_its_own_words_and_not_in_those_of_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "broker.log").write_text("words of an earlier process\n")
    with BrokerProcess(tmp_path, flags=["--lingerms", "5"]) as broker, pytest.raises(Unavailable) as refused:
        broker.start()
    assert "Did you mean '--linger-ms'?" in refused.value.message
    assert "earlier process" not in refused.value.message
