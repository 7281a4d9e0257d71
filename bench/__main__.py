"""`python -m bench`: all benchmarks, or those that are named, and one table of their figures.

    python -m bench                               everything, in under three minutes
    python -m bench produce-grpc --seconds 5      one of them, measured longer
    python -m bench --json figures.json           the figures and the machine's facts, for programs

Ends with 1 when a figure falls short of its target. Other work on the machine shows in the figures: run it alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench import codec, idle, machine, partitions, produce_grpc, produce_http, quiet_producer, tail_reads
from bench.figures import Figure, show
from bench.load import client_process
from bench.run import ROUNDS, Benchmark, Run

BENCHMARKS: dict[str, Benchmark] = {
    "produce-grpc": produce_grpc.measure,
    "quiet-producer": quiet_producer.measure,
    "produce-http-json": produce_http.measure_json,
    "produce-http-arrow": produce_http.measure_arrow,
    "tail-reads": tail_reads.measure,
    "codec": codec.measure,
    "partitions": partitions.measure,
    "idle": idle.measure,
}
DISK = "/var/tmp"
"""Unlike /tmp, never in memory: fsync would cost nothing there."""
WRITTEN_GIB_PER_SECOND = 1.5
"""At most, by the fastest benchmark on a fast disk; its files are removed when it ends."""


def main() -> int:
    arguments = _arguments()
    progress = Console(stderr=True)
    results: dict[str, list[Figure]] = {}
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=arguments.directory) as directory, client_process() as client:
        facts = machine.facts(Path(directory))
        for name in arguments.benchmarks or BENCHMARKS:
            progress.print(f"[dim]{name} …[/]")
            results[name] = BENCHMARKS[name](Run(Path(directory), arguments.seconds, client))
    facts["seconds"] = round(time.perf_counter() - started_s, 1)
    figures = {name: [figure.as_json() for figure in found] for name, found in results.items()}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": facts, "figures": figures}, indent=2) + "\n", encoding="utf-8")
    console = Console(width=None if sys.stdout.isatty() else 160)
    measured_on = " · ".join(f"{name.replace('_', ' ')} {fact}" for name, fact in facts.items())
    console.print("\n" + measured_on, style="dim", highlight=False)
    show(console, results)
    return 1 if any(figure.holds is False for found in results.values() for figure in found) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Tidelog's figures, each beside its target.")
    parser.add_argument("benchmarks", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; all where none is named")
    parser.add_argument("--seconds", type=float, default=1.5, help="of one measurement; a figure is the median of several (1.5)")
    parser.add_argument("--directory", type=Path, default=Path(DISK), help=f"on the disk to be measured ({DISK})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.benchmarks if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    if not arguments.seconds > 0:
        parser.error("--seconds must be above 0")
    needed_gib = (1 + ROUNDS) * arguments.seconds * WRITTEN_GIB_PER_SECOND
    free_gib = shutil.disk_usage(arguments.directory).free / 2**30
    if free_gib < needed_gib:
        parser.error(f"{arguments.directory} has {free_gib:.1f} GiB free; up to {needed_gib:.1f} GiB are written: see --directory")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
