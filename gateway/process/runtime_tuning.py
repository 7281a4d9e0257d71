"""What becomes of memory that was freed: the process keeps up to 64 MiB of it for the next buffers, and threads share what they
keep. glibc only; a no-op elsewhere.

    segments come and go, megabyte by megabyte ─▶ glibc would give each back to the kernel, and take it anew, page by page

Measured on produce of 1 MiB batches: 15 % less time in the kernel, an eighth more MB/s. It costs what it keeps, up to the bound.

By default each thread keeps as much for itself. Beside fifty readers of history, the broker took 390 MiB for what it counted as
160; where the threads share one arena, and Arrow gives back its own, 250.

Source: mallopt(3), M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX

When Python looks for cycles among its objects: seldom, and never again among those that a broker has loaded by its start.

    look_seldom ─▶ what it needs is loaded ─▶ freeze_startup_objects ─▶ its first session ─▶ only what came since is looked through

What is loaded stays, and records make few cycles. To look as often as Python does by default took an eighth of the start's
CPU, and a fifth of the time of a JSON produce. Sessions come and go: the log of one is a cycle with pools of up to 128 MiB, so none
has begun when the rest is spared. Nothing is collected at the end of the start: of 75,000 objects some hundred are garbage then
(measured), and to find them takes 50 ms, in which nobody is served.

How many files a broker may have open: each connection is one, and the usual limit of a process (1,024) is that of a shell.

The soft limit is raised to the hard one, which needs no right. Source: getrlimit(2), RLIMIT_NOFILE

How much memory the process may take. Source: cgroups(7), memory.max of cgroup v2
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.settings import GatewaySettings

KEPT_BYTES_MAX: Final = 64 << 20
# A buffer from this size on is taken from the kernel for itself, and given back. The most that glibc allows.
MAPPED_BYTES_MIN: Final = 32 << 20

# One for the event loop, and one for all other threads.
ARENAS_MAX: Final = 2

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Returns the memory of the machine, or the limit of this process's cgroups (v2) where that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError):
        own = (root / "proc/self/cgroup").read_text(encoding="ascii").rpartition("0::/")[2].strip()
        folder = root / "sys/fs/cgroup" / own
        for each in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # no file, or "max"
                limits.append(int((each / "memory.max").read_text(encoding="ascii")))
    return min(limits)


def configure_malloc() -> bool:
    """For the whole process, from now on. Whether the C library could be told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    chosen = {_M_TRIM_THRESHOLD: KEPT_BYTES_MAX, _M_MMAP_THRESHOLD: MAPPED_BYTES_MIN, _M_ARENA_MAX: ARENAS_MAX}
    return all(mallopt(parameter, value) for parameter, value in chosen.items())


# Of gc.set_threshold(): allocations between looks at the youngest objects, and how many of these make one at older ones.
THRESHOLDS: Final = (50_000, 20, 100)


def raise_gc_thresholds() -> None:
    gc.set_threshold(*THRESHOLDS)


def freeze_startup_objects() -> None:
    gc.freeze()


# For the bucket, etcd, other brokers, and files.
SPARE: Final = 1_000

log = logging.getLogger(__name__)


def raise_file_limit(settings: GatewaySettings, *, is_reached_from_elsewhere: bool) -> int:
    """For the whole process. How many there may be; where clients could come to need more, the log says so. Not of a broker that
    only this machine reaches: who tries it has no use for that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (ValueError, OSError):  # some systems take no more than a bound of their own
        pass
    needed = settings.http_connections_max + settings.grpc_connections_max + SPARE
    if is_reached_from_elsewhere and soft != resource.RLIM_INFINITY and soft < needed:
        log.info(
            "this process may have %d files open, and %d connections are allowed (http_connections_max, grpc_connections_max): "
            "the limit is met before that; raise it (ulimit -n %d), or allow fewer",
            soft,
            needed - SPARE,
            needed,
        )
    return soft
