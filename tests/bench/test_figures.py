"""Figures, however they were measured, are written as JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.figures import Figure, Target


@pytest.mark.parametrize(("value", "holds"), [(np.float64(3.0), True), (np.int64(7), False), (2, True)])
def test_a_figure_computed_by_numpy_is_written_as_json(value: float, holds: bool) -> None:
    written = json.loads(json.dumps(Figure("commit, p99", value, "ms", Target(most=5)).as_json()))
    assert (written["value"], written["holds"]) == (float(value), holds)
