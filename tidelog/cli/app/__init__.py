"""Holds what all commands share: the root command, contexts, credentials, output, progress and exit codes.

Entries: root.py, client_command.py (one client and one event loop a command), `Output` in output.py, errors.py.

Must not import a command.
"""
