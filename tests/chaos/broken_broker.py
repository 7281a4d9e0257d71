"""`tidelog serve` with a rule broken on purpose, so that a chaos run can show that it finds it.

python -m tests.chaos.broken_broker RULE serve --bucket …
"""

from __future__ import annotations

import sys

from tests.simulation.broken_rules import BrokenRule, in_force
from tidelog.cli.main import main

RULES = (
    BrokenRule.ACKNOWLEDGED_EARLY,
    BrokenRule.TAKEOVER_WITHOUT_SEAL,
    BrokenRule.UNKNOWN_IS_FAILURE,
    BrokenRule.REPEATS_NOT_KNOWN,
)
"""Those that break within one process; the others need the simulation's view of all brokers."""

if __name__ == "__main__":
    _, rule, *arguments = sys.argv
    sys.argv = ["tidelog", *arguments]
    with in_force(BrokenRule(rule)):
        main()
