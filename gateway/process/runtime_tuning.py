"""Tunes malloc, garbage collection and the limit of open files, and reads the memory limit.

malloc (glibc only; a no-op elsewhere): the process keeps up to 64 MiB of freed memory for the next buffers. Segments allocate and
free
megabytes at a time, which glibc would return to the kernel and fetch again page by page. On produce of 1 MiB batches this saves 15
% of
the time in the kernel, and adds an eighth to the MB/s (measured). Threads share one arena: with an arena each, a broker with fifty
readers of history took 390 MiB for buffers of 160 MiB; with a shared one, and Arrow returning its own, 250 MiB.
Source: mallopt(3), M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX

Garbage collection: rare, and never again among the objects that a broker has loaded by its start.

  raise_gc_thresholds ─▶ modules are loaded ─▶ freeze_startup_objects ─▶ its first session ─▶ only later objects are scanned

Loaded objects stay, and records make few cycles. Python's default interval took an eighth of the start's CPU, and a fifth of the
time of
a JSON produce. The log of a session is a cycle with pools of up to 128 MiB, so no session has begun at the freeze. Nothing is
collected
at the end of the start: of 75,000 objects some hundred are garbage (measured), and a collection takes 50 ms in which no call is
served.

Open files: each connection is one, and the usual limit (1,024) is that of a shell. The soft limit is raised to the hard one, which
needs no privilege. Source: getrlimit(2), RLIMIT_NOFILE

Memory limit. Source: cgroups(7), memory.max of cgroup v2
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
# Size from which a buffer is mapped by itself, and unmapped when freed. The most that glibc allows.
MAPPED_BYTES_MIN: Final = 32 << 20

# One arena for the event loop, and one for all other threads.
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
    """Configures malloc for the whole process. Returns whether the C library accepted the values."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    chosen = {_M_TRIM_THRESHOLD: KEPT_BYTES_MAX, _M_MMAP_THRESHOLD: MAPPED_BYTES_MIN, _M_ARENA_MAX: ARENAS_MAX}
    return all(mallopt(parameter, value) for parameter, value in chosen.items())


# Arguments of gc.set_threshold(): allocations between scans of the youngest objects, and how many of these lead to one of older
# ones.
THRESHOLDS: Final = (50_000, 20, 100)


def raise_gc_thresholds() -> None:
    gc.set_threshold(*THRESHOLDS)


def freeze_startup_objects() -> None:
    gc.freeze()


# Files for the bucket, etcd, other brokers, and logs.
SPARE: Final = 1_000

log = logging.getLogger(__name__)


def raise_file_limit(settings: GatewaySettings, *, is_reached_from_elsewhere: bool) -> int:
    """Raises the process's limit of open files, and returns it. Logs if clients could need more, unless only this machine reaches
    the broker: a trial needs no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (ValueError, OSError):  # some systems accept only a bound of their own
        pass
    needed = settings.http_connections_max + settings.grpc_connections_max + SPARE
    if is_reached_from_elsewhere and soft != resource.RLIM_INFINITY and soft < needed:
        log.info(
            "limit of open files is low limit=%d connections_max=%d: the process meets it before http_connections_max and "
            "grpc_connections_max; raise it (ulimit -n %d), or allow fewer connections",
            soft,
            needed - SPARE,
            needed,
        )
    return soft
