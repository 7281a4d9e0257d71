"""Holds the commands that run servers: `dev`, `serve` and `compact`.

    serve.py (`dev`, `serve`) ─▶ gateway.process.broker_process        until Ctrl-C or SIGTERM
    compact.py (`compact`)    ─▶ gateway.process.compactor_process

Entries: `dev` and `serve` in serve.py, `compact` in compact.py. setting_list.py lists every setting with its value,
default and meaning.

Invariants:
- The settings' own classes define the flags, so there is one list of them.
- The gateway is imported when a command runs, so other commands start quickly.
- `-o json` prints one line with the addresses, once the broker serves.

Must not import the other commands.
"""
