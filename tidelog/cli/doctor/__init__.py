"""Runs `tidelog doctor`: checks of settings, bucket, etcd, TLS and Kafka listeners, each with a diagnosis and a remedy.

    command.py ─▶ checks.py (settings, bucket, data directory), etcd.py, tls.py, kafka.py ─▶ diagnosis.py ─▶ a table, an exit code

Entry: `doctor` in command.py. `Diagnosis` (diagnosis.py) is the answer of every check.

Invariants:
- A check answers and never raises.
- A check leaves nothing on the bucket or in the data directory.
- The exit code is 3 if a check failed.

Must not start a broker.
"""
