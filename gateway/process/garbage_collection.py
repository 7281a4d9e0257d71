"""When Python looks for cycles among its objects: seldom, and never again among those that a broker has loaded by its start.

    look_seldom ─▶ what it needs is loaded ─▶ spare_what_is_loaded ─▶ its first session ─▶ only what came since is looked through

What is loaded stays, and records make few cycles. To look as often as Python does by default took an eighth of the start's
CPU, and a fifth of the time of a JSON produce. Sessions come and go: the log of one is a cycle with pools of up to 128 MiB, so none
has begun when the rest is spared. Nothing is collected at the end of the start: of 75,000 objects some hundred are garbage then
(measured), and to find them takes 50 ms, in which nobody is served.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (50_000, 20, 100)
"""Of gc.set_threshold(): allocations between looks at the youngest objects, and how many of these make one at older ones."""


def look_seldom() -> None:
    gc.set_threshold(*THRESHOLDS)


def spare_what_is_loaded() -> None:
    gc.freeze()
