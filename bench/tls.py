"""What TLS costs: produce with it and without, beside bare servers of the same libraries that answer and do nothing else.

    CPU of the broker for a gigabyte, with TLS less without    ÷    the same of a bare server    =    ours beside the library's

Four servers take their turns in each round, so that what the machine does meanwhile meets all alike; CPU rather than rates, since
the client, which speaks TLS as well, has the same cores; at one pace, so that what a broker does each second cancels out; and the
client encrypts in all four, since that slows a server beside it (thrown_away_tls.py). Ready record batches of 1 MiB: what else is
done with them is little. The kernel's clock of a process, which counts nanoseconds where CPU times are given in hundredths of a
second, and the threads that have ended, too.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from bench.batches import MESSAGE_BYTES_MAX, produce_request, record_batch, records_in
from bench.broker import broker
from bench.figures import Figure, Target, median, spread
from bench.grpc_client import produce
from bench.http_client import post, post_request
from bench.load import Load, Outcome
from bench.run import Run
from bench.thrown_away_tls import TlsFiles
from bench.tls_floor import bare_endpoints
from tests.kit.certificates import make_certificates
from tidelog import connect_sync

PARTITIONS: Final = 6
ROUNDS: Final = 4
# Requests a second, of 1 MiB: the same for all, since a server that waits more does less with each turn.
PACE: Final = 40.0
GRPC_LOAD: Final = (4, 8)
# Connections, and requests under way on each.
HTTP_LOAD: Final = (12, 1)
PATH: Final = "/v1/topics/records/records?partition=0"
RECORD_BATCH: Final = "application/vnd.tidelog.record-batch"
# Linux, include/linux/posix-timers.h
CPUCLOCK_SCHED: Final = 2


def measure(run: Run) -> list[Figure]:
    batch = record_batch(records_in(MESSAGE_BYTES_MAX))
    requests = [produce_request("records", batch, range(partition, partition + 1)) for partition in range(PARTITIONS)]
    grpc_load, http_load = Load(*GRPC_LOAD, run.seconds), Load(*HTTP_LOAD, run.seconds)
    with run.new_directory("certificates") as directory:
        made = make_certificates(directory)
        files = TlsFiles(made.ca, made.cert, made.key)
        quiet = ["--compact", "false"]  # its CPU would be counted as that of TLS, or of none
        flags = [*quiet, "--tls-cert-file", str(made.cert), "--tls-key-file", str(made.key)]
        with (
            broker(run, "tls-none", flags=quiet) as plain,
            broker(run, "tls-on", flags=flags) as tls,
            bare_endpoints(made.cert, made.key) as bare,
        ):
            plain.create_topic("records", PARTITIONS)
            with connect_sync(tls.http_url.replace("http:", "https:"), ca_file=made.ca) as log:
                log.topics.create("records", partitions=PARTITIONS)

            def over_grpc(server: Server, address: str, ca: Path | None) -> Callable[[], Cost]:
                as_with_tls = files if ca is None else None
                return lambda: _cost(
                    server,
                    len(batch),
                    lambda: run.client.run(
                        produce, address, requests, grpc_load, ca=ca, requests_per_second=PACE, as_with_tls=as_with_tls
                    ),
                )

            def over_http(server: Server, address: str, ca: Path | None) -> Callable[[], Cost]:
                url = f"http://{address}"
                request = post_request(url, PATH, batch, RECORD_BATCH)
                as_with_tls = files if ca is None else None
                return lambda: _cost(
                    server,
                    len(batch),
                    lambda: run.client.run(post, url, request, http_load, ca=ca, requests_per_second=PACE, as_with_tls=as_with_tls),
                )

            grpc = [
                *(over_grpc(plain, plain.grpc_address, None), over_grpc(tls, tls.grpc_address, made.ca)),
                *(over_grpc(bare, bare.endpoints.grpc_plain, None), over_grpc(bare, bare.endpoints.grpc_tls, made.ca)),
            ]
            http = [
                *(over_http(plain, _host_port(plain.http_url), None), over_http(tls, _host_port(tls.http_url), made.ca)),
                *(over_http(bare, bare.endpoints.http_plain, None), over_http(bare, bare.endpoints.http_tls, made.ca)),
            ]
            return [
                *_figures("gRPC, batches of 1 MiB", _in_turn(grpc), "grpc"),
                *_figures("HTTP, batches of 1 MiB", _in_turn(http), f"uvloop, {ssl.OPENSSL_VERSION}"),
            ]


class Server(Protocol):
    @property
    def pid(self) -> int: ...


class Cost(NamedTuple):
    # Of the server, for a gigabyte.
    cpu_s: float


def _cost(server: Server, request_bytes: int, load: Callable[[], Outcome]) -> Cost:
    before_s = _cpu_seconds(server.pid)
    outcome = load()
    gigabytes = outcome.requests * request_bytes / 1e9
    return Cost((_cpu_seconds(server.pid) - before_s) / gigabytes)


def _cpu_seconds(pid: int) -> float:
    """Of all its threads, those that have ended included. OSError where there is no such process.

    Source: clock_getcpuclockid(3), which Python lacks; Linux's CPU clock of a process is ~pid << 3 | CPUCLOCK_SCHED.
    """
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


def _in_turn(measurements: list[Callable[[], Cost]]) -> list[list[Cost]]:
    """By round; the first one warms up and is thrown away."""
    return [[measure() for measure in measurements] for _ in range(1 + ROUNDS)][1:]


def _figures(what: str, rounds: list[list[Cost]], library: str) -> list[Figure]:
    """Of each round: broker without TLS and with it, bare server without and with."""
    ours = [with_tls.cpu_s - plain.cpu_s for plain, with_tls, _, _ in rounds]
    theirs = [with_tls.cpu_s - plain.cpu_s for _, _, plain, with_tls in rounds]
    return [
        Figure(f"{what}: CPU that TLS adds, beside a bare server's", median(ours) / median(theirs), "×", Target(most=1.1)),
        Figure("it adds to the broker, for a gigabyte", median(ours), "s", note=f"{spread(ours)}; {_reported(rounds, 0)}"),
        Figure("it adds to the bare server", median(theirs), "s", note=f"{library}; {spread(theirs)}; {_reported(rounds, 2)}"),
    ]


def _reported(rounds: list[list[Cost]], first: int) -> str:
    without, with_tls = (median(one[index].cpu_s for one in rounds) for index in (first, first + 1))
    return f"{without:.2f} s without TLS, {with_tls:.2f} with"


def _host_port(url: str) -> str:
    return url.removeprefix("http://")
