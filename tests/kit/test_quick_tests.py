from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.quick_tests import pytest_ignore_collect

SLOW = "import pytest\n\npytestmark = [pytest.mark.image, pytest.mark.slow]\n"
MIXED = "import pytest\n\n@pytest.mark.slow\ndef test_a() -> None: ...\n"


class _Config:
    def __init__(self, markers: str, folder: Path, *arguments: str) -> None:
        self.markers = markers
        self.args = list(arguments)
        self.invocation_params = pytest.Config.InvocationParams(args=arguments, plugins=None, dir=folder)

    def getoption(self, name: str) -> str:
        assert name == "markexpr"
        return self.markers


def ignored(path: Path, markers: str, *arguments: str) -> bool | None:
    config: Any = _Config(markers, path.parent, *arguments)
    return pytest_ignore_collect(path, config)


@pytest.mark.parametrize(
    ("source", "markers", "expected"),
    [(SLOW, "not slow", True), (MIXED, "not slow", None), (SLOW, "", None), (SLOW, "slow and not own_spark", None)],
)
def test_where_only_quick_tests_run_slow_modules_are_not_imported(
    source: str, markers: str, expected: bool | None, tmp_path: Path
) -> None:
    path = tmp_path / "test_one.py"
    path.write_text(source, encoding="utf-8")
    assert ignored(path, markers, "tests") is expected


def test_a_slow_module_that_is_named_is_collected(tmp_path: Path) -> None:
    path = tmp_path / "test_one.py"
    path.write_text(SLOW, encoding="utf-8")
    assert ignored(path, "not slow", "test_one.py::test_a") is None
    assert ignored(path, "not slow", str(path)) is None


def test_a_folder_that_is_no_module_of_tests_is_collected(tmp_path: Path) -> None:
    assert ignored(tmp_path, "not slow", "tests") is None
