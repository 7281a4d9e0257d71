"""Starts and stops the processes: a broker (broker_process.py) or a compactor (compactor_process.py).

Also configures logging (logging.py), malloc, garbage collection and file limits (runtime_tuning.py).

Invariants:
- Ports are bound first, then the metadata store and the bucket are opened; a start that fails leaves nothing behind.
- SIGTERM drains the broker before it ends.

The top of the gateway: the command line calls it, and nothing below imports it.
"""
