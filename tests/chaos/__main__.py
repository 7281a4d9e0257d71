"""`python -m tests.chaos --minutes 5`: a chaos run, what happened in it, and its judgement. Exit code 1 where a promise was broken.

The history and all logs are kept where something was found, or where the run itself failed; else they go, unless --keep is given.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from tests.chaos.broken_broker import FOUND_BY
from tests.chaos.cluster import TIDELOG
from tests.chaos.history import AnyEvent, History, read_history
from tests.chaos.history_checker import check
from tests.chaos.report import summary
from tests.chaos.run import run_chaos
from tests.kit.servers import S3Server, chosen_s3_server

# Exit code after Ctrl-C or SIGTERM, as a shell's.
BROKEN_OFF = 130
# Violations of one anomaly.
SHOWN_OF_EACH_MAX = 10
# Seeds under which a rule that is broken may show.
TRIES: Final = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Breaks a real cluster on purpose, and judges it.")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults go on; about half a minute of quiet follows")
    parser.add_argument("--seed", type=int, help="of the faults; another one each time where none is given")
    parser.add_argument("--keep", action="store_true", help="keep the history and the logs in any case")
    parser.add_argument("--judge", type=Path, metavar="HISTORY", help="judge this history, and run nothing")
    parser.add_argument("--break", dest="rule", choices=list(FOUND_BY), help="break this rule in every broker: it must be found")
    parser.add_argument("--prove", action="store_true", help="break one rule after the other; exit code 1 where one is not found")
    chosen = parser.parse_args()
    if chosen.judge is not None:
        return judge(read_history(chosen.judge))
    if not chosen.minutes > 0:
        parser.error("--minutes must be above 0")
    seed = secrets.randbelow(1 << 31) if chosen.seed is None else chosen.seed
    if chosen.prove:
        return prove([chosen.rule] if chosen.rule else list(FOUND_BY), seed, for_s=chosen.minutes * 60)
    directory = Path(tempfile.mkdtemp(prefix=f"tidelog-chaos-{seed}-"))
    logging.basicConfig(filename=directory / "clients.log", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    print(f"seed {seed}", flush=True)
    program = TIDELOG if chosen.rule is None else ("tests.chaos.broken_broker", chosen.rule)
    code = 1
    try:
        code = _run(directory, seed, for_s=chosen.minutes * 60, program=program)
    except (asyncio.CancelledError, KeyboardInterrupt):  # the loop has ended, and every process with it
        print("broken off; nothing was judged", flush=True)
        code = BROKEN_OFF
    finally:
        if code or chosen.keep:
            print(f"history and logs: {directory}", flush=True)
        else:
            shutil.rmtree(directory)
    return code


def prove(rules: Sequence[str], seed: int, *, for_s: float) -> int:
    """Exit code 0 when each broken rule is found by an anomaly that stands for it, by one of TRIES seeds: some rules need a blow at
    the right moment.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # what the SDK says of faults is for those who look into one
    missed = []
    for rule in rules:
        for tried in range(seed, seed + TRIES):
            counted = Counter(violation.anomaly for violation in check(_broken_events(rule, tried, for_s=for_s)))
            reported = ", ".join(f"{anomaly} {count}" for anomaly, count in sorted(counted.items())) or "nothing"
            found = bool(FOUND_BY[rule] & counted.keys())
            print(f"{rule:22} {'found' if found else 'not found'} by seed {tried}: {reported}", flush=True)
            if found:
                break
        else:
            missed.append(rule)
    print(
        f"not found: {', '.join(missed)}" if missed else f"broken rules that were found: {len(rules)} of {len(rules)}", flush=True
    )
    return int(bool(missed))


def _broken_events(rule: str, seed: int, *, for_s: float) -> list[AnyEvent]:
    """Of a run in which every broker breaks the rule."""
    with tempfile.TemporaryDirectory(prefix=f"tidelog-chaos-{rule}-") as scratch:
        directory = Path(scratch)
        with chosen_s3_server(directory) as s3, History(directory / "history.ndjson") as history:
            program = ("tests.chaos.broken_broker", rule)
            asyncio.run(_run_to_the_end(directory, s3, history, seed, for_s=for_s, program=program, say=lambda text: None))
            return history.events


def _run(directory: Path, seed: int, *, for_s: float, program: Sequence[str]) -> int:
    with chosen_s3_server(directory) as s3, History(directory / "history.ndjson") as history:
        asyncio.run(_run_to_the_end(directory, s3, history, seed, for_s=for_s, program=program, say=_say))
        return judge(history.events)


async def _run_to_the_end(
    directory: Path,
    s3: S3Server,
    history: History,
    seed: int,
    *,
    for_s: float,
    program: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """SIGTERM breaks it off as Ctrl-C does: every process that was started is ended."""
    run = asyncio.current_task()
    assert run is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, run.cancel)
    await run_chaos(directory, s3, history, seed=seed, for_s=for_s, say=say, program=program)


def _say(text: str) -> None:
    print(text, flush=True)


def judge(events: list[AnyEvent]) -> int:
    """The exit code."""
    print(summary(events))
    found = check(events)
    for anomaly, count in Counter(violation.anomaly for violation in found).items():
        for violation in islice((one for one in found if one.anomaly == anomaly), SHOWN_OF_EACH_MAX):
            print(violation)
        if count > SHOWN_OF_EACH_MAX:
            print(f"{anomaly}: … and {count - SHOWN_OF_EACH_MAX} more")
    print(f"{len(found)} violations" if found else "no promise was broken", flush=True)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
