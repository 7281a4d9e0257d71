"""Implements the command line `tidelog`: one module for each command, or for each group of commands.

    main.py ─▶ commands.py ─▶ app/ (root, contexts, credentials, output, errors) ─▶ a command ─▶ tidelog.client
                                                                                  └─▶ broker/ ─▶ gateway.process

Entry: `main` in main.py.

- app/: what all commands share
- formats/: records and tables, read and written
- broker/: `dev`, `serve`, `compact`
- doctor/: diagnoses of settings, bucket, etcd, TLS and Kafka listeners

Invariants:
- stdout has data only; messages go to stderr.
- The exit code says what kind of failure it was (app/errors.py).
- Modules import what is heavy inside their functions, so `--help` stays fast.

Must not be imported by the SDK below it.
"""
