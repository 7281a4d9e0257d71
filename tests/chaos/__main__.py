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
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from tests.chaos.broken_broker import RULES
from tests.chaos.cluster import TIDELOG
from tests.chaos.history import AnyEvent, History, read_history
from tests.chaos.history_checker import check
from tests.chaos.report import summary
from tests.chaos.run import run_chaos
from tests.servers import S3Server, chosen_s3_server

BROKEN_OFF = 130
"""Exit code after Ctrl-C or SIGTERM, as a shell's."""
SHOWN_OF_EACH_MAX = 10
"""Violations of one anomaly."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Breaks a real cluster on purpose, and judges it.")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults go on; about half a minute of quiet follows")
    parser.add_argument("--seed", type=int, help="of the faults; another one each time where none is given")
    parser.add_argument("--keep", action="store_true", help="keep the history and the logs in any case")
    parser.add_argument("--judge", type=Path, metavar="HISTORY", help="judge this history, and run nothing")
    rules = [rule.value for rule in RULES]
    parser.add_argument("--break", dest="rule", choices=rules, help="break this rule in every broker: it must be found")
    chosen = parser.parse_args()
    if chosen.judge is not None:
        return judge(read_history(chosen.judge))
    if not chosen.minutes > 0:
        parser.error("--minutes must be above 0")
    seed = secrets.randbelow(1 << 31) if chosen.seed is None else chosen.seed
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


def _run(directory: Path, seed: int, *, for_s: float, program: Sequence[str]) -> int:
    with chosen_s3_server(directory) as s3, History(directory / "history.ndjson") as history:
        asyncio.run(_run_to_the_end(directory, s3, history, seed, for_s=for_s, program=program))
        return judge(history.events)


async def _run_to_the_end(
    directory: Path, s3: S3Server, history: History, seed: int, *, for_s: float, program: Sequence[str]
) -> None:
    """SIGTERM breaks it off as Ctrl-C does: every process that was started is ended."""
    run = asyncio.current_task()
    assert run is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, run.cancel)
    await run_chaos(directory, s3, history, seed=seed, for_s=for_s, say=lambda text: print(text, flush=True), program=program)


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
