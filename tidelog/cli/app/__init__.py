"""Holds what all commands share: the root command, contexts, credentials, output, progress and exit codes.

    root.py ─▶ help_page.py            options of every command: contexts.py, credential_options.py
    a command ─▶ client_command.py (one client, one event loop) ─▶ output.py (stdout), progress.py (stderr)
                     └─▶ errors.py: one message and an exit code

Entries: `new_root` (root.py), `with_client` (client_command.py), `Output` (output.py), `guarded` (errors.py).

Invariants:
- The client and the loop are closed, however a command ends.
- An irreversible change asks on a terminal, and needs `--yes` elsewhere (client_command.py).
- A key is never an option: command lines are visible in the list of processes.

Must not import a command.
"""
