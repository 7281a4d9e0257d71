"""Implements the command line `tidelog`: one module for each command, or for each group of commands.

    main.py ─▶ commands.py ─▶ app/ (root, contexts, output, errors) ─▶ a command ─▶ tidelog.client

Entry: `main` in main.py. formats/ reads and writes records and tables; broker/ runs servers; doctor/ diagnoses.

Invariants:
- stdout has data only; messages go to stderr.
- The exit code says what kind of failure it was (app/errors.py).
"""
