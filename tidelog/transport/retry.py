"""How long a call that was refused waits until it is tried again, and which error is told in the end. Pure, but for chance."""

from __future__ import annotations

import random
from typing import TypeVar

from metadata.errors import Throttled, TidelogError
from tidelog.transport.rpc_errors import is_timeout

_Error = TypeVar("_Error", bound=TidelogError)


def retry_wait_s(error: TidelogError, *, pause_s: float) -> float:
    """At random, since many are refused at the same moment; a broker that names a time is not asked before."""
    if isinstance(error, Throttled):
        return error.retry_after_s * random.uniform(1.0, 1.5)
    return pause_s * random.uniform(0.5, 1.5)


def worth_telling(met: _Error | None, error: _Error, *, is_cut_short: bool) -> _Error:
    """The newer one, unless it is the silence of an attempt that had less than its time: so little says nothing."""
    return met if met is not None and is_cut_short and is_timeout(error) else error
