"""Seeds of a test that plays a world: the first few are quick, the others slow. Pure.

`make check` finds what breaks often, and `make test` plays every seed.
"""

from __future__ import annotations

import pytest
from _pytest.mark.structures import ParameterSet


def seeds(chosen: range, *, quick: int) -> list[ParameterSet]:
    """Returns the seeds as parameters. All but the first `quick` are marked slow."""
    return [pytest.param(seed, marks=[] if at < quick else [pytest.mark.slow]) for at, seed in enumerate(chosen)]
