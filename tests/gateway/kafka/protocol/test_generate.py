"""The committed modules are what the tables say."""

from __future__ import annotations

import pytest

from gateway.kafka.protocol.generate import FOLDER, formatted, generated
from gateway.kafka.protocol.schema import definitions


@pytest.mark.slow  # ruff runs as a process
def test_the_generated_files_are_those_of_the_tables() -> None:
    for name, text in generated(definitions()).items():
        assert FOLDER.joinpath(name).read_text(encoding="utf-8") == formatted(name, text), (
            f"run make kafka-protocol: {name} differs"
        )
