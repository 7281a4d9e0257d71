"""Runs `tidelog doctor`: checks of settings, bucket, etcd and TLS, each with a diagnosis and a remedy.

    command.py ─▶ checks.py, etcd.py, tls.py ─▶ diagnosis.py

Invariant: a check answers and never raises; it leaves nothing on the bucket or in the data directory.
"""
