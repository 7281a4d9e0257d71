"""Encodes, checks and decodes record batches of Kafka's format, version 2. Pure.

batch.py checks and stamps batches, columns.py turns them into columns and back; the kernels (batch_kernel.py, checksum_kernel.py,
key_hash_kernel.py) are compiled where a C compiler is found. Must not import object stores' implementations or anything above.
"""
