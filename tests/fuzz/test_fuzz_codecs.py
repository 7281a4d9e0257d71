"""The fuzzing of the codecs runs, finds nothing in a moment, and would find something."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import fuzz_codecs
from tests.kit.segments.kernel_forms import UNCOMPILED


def test_every_seed_passes() -> None:
    for seed in fuzz_codecs.seeds():
        for size in {len(seed), len(seed) - 1, len(seed) // 2, 1, 0}:
            fuzz_codecs.one_input(seed[:size])


def test_a_difference_between_the_two_forms_of_the_kernel_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UNCOMPILED, "_is_utf8", lambda text, length: False)
    with_headers = fuzz_codecs.seeds()[0]
    with pytest.raises(AssertionError):
        fuzz_codecs.one_input(with_headers)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed here")
def test_a_few_seconds_of_fuzzing_find_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.fuzz_codecs", "--seconds", "3", "--findings", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr.decode()[-2000:]
    assert list(tmp_path.iterdir()) == []
    assert b"Done " in run.stderr
