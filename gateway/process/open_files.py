"""How many files a broker may have open: each connection is one, and the usual limit of a process (1,024) is that of a shell.

The soft limit is raised to the hard one, which needs no right. Source: getrlimit(2), RLIMIT_NOFILE
"""

from __future__ import annotations

import logging
import resource
from typing import Final

from gateway.settings import GatewaySettings

SPARE: Final = 1_000
"""For the bucket, etcd, other brokers, and files."""

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
