"""Encodes, checks and decodes record batches of Kafka's format, version 2. Pure.

    header.py ─▶ batch.py (checks, stamp) ─▶ columns.py (Arrow columns, tuples)
    kernels compiled by Cython: batch_kernel.py, checksum_kernel.py, key_hash_kernel.py

Invariants:
- A batch is stored with no byte changed but the stamp in front of the CRC (LogAppendTime topics excepted).
- Every length is checked before it is believed; decompression has a bound.
- A kernel gives the same results compiled and as plain Python.

Entries: `check_produced` in batch.py, `decode_batches` and `encode_batch` in columns.py. Must not import segments/bucket or an
object store.
"""
