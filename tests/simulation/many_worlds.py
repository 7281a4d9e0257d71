"""Many worlds, one of each kind for each seed, on all cores; each that fails is shown with the command that runs it again.

    python -m tests.simulation --seeds 500
    python -m tests.simulation --seeds 500 --kind groups            only worlds of consumer groups (group_world.py)
    python -m tests.simulation --seeds 500 --kind routes            only worlds of listeners and forwarding (route_world.py)
    python -m tests.simulation --seed 17 --trace seed-17.txt        every request and every answer of one world
    python -m tests.simulation --seeds 20 --break seal-deleted      worlds in which a rule is broken: here, to fail is right

Exit codes: 0 every invariant held · 1 some seed failed · 2 bad usage.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tests.simulation.broken_rules import BrokenRule
from tests.simulation.group_broken_rules import BrokenGroupRule
from tests.simulation.group_world import simulate_groups
from tests.simulation.route_broken_rules import BrokenRouteRule
from tests.simulation.route_world import simulate_routes
from tests.simulation.virtual_loop import Stuck
from tests.simulation.world import is_long, simulate

# Findings that are printed for one seed.
SHOWN_MAX = 5
# Seconds between two lines of progress where standard error is no terminal.
LOG_EVERY_S = 60.0


class Kind(Enum):
    LOG = "log"
    GROUPS = "groups"
    ROUTES = "routes"


class Result(NamedTuple):
    seed: int
    findings: list[str]
    tallies: dict[str, int]
    trace: list[str]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulates the log in a world of trouble.")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many worlds")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed of them")
    parser.add_argument("--seed", type=int, metavar="SEED", help="run this one only, in this process")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="with --seed: every request and answer of the run")
    parser.add_argument("--kind", choices=[kind.value for kind in Kind], help="of worlds; else one of each for each seed")
    parser.add_argument(
        "--trouble",
        type=float,
        metavar="S",
        help="virtual seconds of it in each world; else short or long, by the seed",
    )
    rules = {rule.value: kind for kind, broken in _RULES.items() for rule in broken}
    parser.add_argument(
        "--break",
        dest="broken",
        choices=rules,
        default="nothing",
        metavar="RULE",
        help=f"breaks a rule in the worlds of its kind: {', '.join(rules)}",
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes")
    given = parser.parse_args(arguments)
    if given.seeds < 1 or given.jobs < 1 or (given.trouble is not None and given.trouble <= 0):
        parser.error("--seeds, --jobs and --trouble must be above 0")
    if given.trace is not None and given.seed is None:
        parser.error("--trace needs --seed")
    kinds = [kind for kind in Kind if given.kind in (None, kind.value) and given.broken in {rule.value for rule in _RULES[kind]}]
    if not kinds:
        parser.error(f"{given.broken} is no rule of worlds of {given.kind}")
    judge = partial(judged, kinds=kinds, broken=given.broken, trouble_s=given.trouble, keep_trace=given.trace is not None)
    seeds = range(given.first, given.first + given.seeds) if given.seed is None else range(given.seed, given.seed + 1)
    started_s = time.perf_counter()
    failed, tallies = 0, Counter[str]()
    logged_s = started_s
    for done, result in enumerate(_results(judge, seeds, given.jobs), 1):
        tallies.update(result.tallies)
        if result.findings:
            failed += 1
            _show(result, arguments)
        if given.trace is not None:
            given.trace.write_text("\n".join(result.trace) + "\n")
        now_s = time.perf_counter()
        progress = f"{done}/{len(seeds)} seeds, {failed} failed, {now_s - started_s:.0f} s"
        if sys.stderr.isatty():
            _progress(progress, done == len(seeds))
        elif now_s - logged_s > LOG_EVERY_S:
            print(progress, file=sys.stderr, flush=True)
            logged_s = now_s
    print(", ".join(f"{count:,} {what}" for what, count in tallies.items()))
    print(f"{len(seeds)} seeds from {seeds.start}: {failed} failed, in {time.perf_counter() - started_s:.1f} s")
    return 1 if failed else 0


def judged(seed: int, *, kinds: Sequence[Kind], broken: str, trouble_s: float | None, keep_trace: bool) -> Result:
    """Of one world of each kind."""
    logging.disable(logging.CRITICAL)  # what the brokers complain about is what was done to them
    findings, tallies, trace = list[str](), Counter[str](), list[str]()
    for kind in kinds:
        try:
            outcome = _WORLDS[kind](seed, broken, trouble_s, keep_trace)
        except Stuck as error:
            findings.append(str(error))
            continue
        findings += outcome.findings
        tallies.update(outcome.tallies)
        trace += outcome.trace if keep_trace else []
    return Result(seed, findings, tallies, trace)


def _log_world(seed: int, broken: str, trouble_s: float | None, keep_trace: bool) -> Result:
    outcome = simulate(seed, broken=BrokenRule(broken), trouble_s=trouble_s, keep_trace=keep_trace)
    return Result(seed, [*map(str, outcome.violations), *outcome.failures], outcome.tallies, outcome.trace)


def _group_world(seed: int, broken: str, trouble_s: float | None, keep_trace: bool) -> Result:
    outcome = simulate_groups(seed, broken=BrokenGroupRule(broken), trouble_s=trouble_s)
    return Result(seed, outcome.findings, outcome.tallies, outcome.trace)


def _route_world(seed: int, broken: str, trouble_s: float | None, keep_trace: bool) -> Result:
    outcome = simulate_routes(seed, broken=BrokenRouteRule(broken), trouble_s=trouble_s, keep_trace=keep_trace)
    return Result(seed, [*map(str, outcome.violations), *outcome.failures], outcome.tallies, outcome.trace)


_RULES: Final[dict[Kind, type[BrokenRule] | type[BrokenGroupRule] | type[BrokenRouteRule]]] = {
    Kind.LOG: BrokenRule,
    Kind.GROUPS: BrokenGroupRule,
    Kind.ROUTES: BrokenRouteRule,
}
_WORLDS: Final = {Kind.LOG: _log_world, Kind.GROUPS: _group_world, Kind.ROUTES: _route_world}


def _results(judge: partial[Result], seeds: range, jobs: int) -> Iterator[Result]:
    if len(seeds) == 1 or jobs == 1:
        yield from map(judge, seeds)
        return
    # spawned, not forked: each process then begins from the same state, with the hash seed that its parent has
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=_set_imports_aside) as processes:
        yield from processes.imap_unordered(judge, sorted(seeds, key=is_long, reverse=True))  # so that no process waits in the end


def _set_imports_aside() -> None:
    """From the garbage collector, which would look at all of it again between worlds."""
    gc.collect()
    gc.freeze()


def _show(result: Result, arguments: Iterable[str]) -> None:
    if sys.stderr.isatty():
        _progress("", last=False)
    print(f"seed {result.seed} FAILED")
    for finding in result.findings[:SHOWN_MAX]:
        print(f"  {finding}")
    if len(result.findings) > SHOWN_MAX:
        print(f"  … and {len(result.findings) - SHOWN_MAX} more")
    kept = _without(arguments, "--seeds", "--first", "--jobs", "--seed", "--trace")
    print("  again:", " ".join(["python -m tests.simulation", f"--seed {result.seed}", *kept, f"--trace seed-{result.seed}.txt"]))


def _without(arguments: Iterable[str], *flags: str) -> list[str]:
    kept, skip = [], False
    for argument in arguments:
        if skip or argument.partition("=")[0] in flags:
            skip = not skip and "=" not in argument
        else:
            kept.append(argument)
    return kept


def _progress(text: str, last: bool) -> None:
    """Writes over the last line of a terminal."""
    sys.stderr.write(f"\r\x1b[K{text}" + ("\n" if last else ""))
    sys.stderr.flush()
