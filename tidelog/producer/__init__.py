"""Sends records: collects them in batches by partition, and sends each batch to its leader until its outcome is known.

    producer.py ─▶ accumulator.py ─▶ partition_queue.py ─▶ ready_queue.py ─▶ sender.py     outcomes settle in batch.py

Entry: `Producer` in producer.py.

Invariants:
- Batches of a partition are appended in the order of `send`, each once (idempotent producer).
- Every record gets an outcome: an offset, a refusal, or OutcomeUnknown.
- Buffered bytes stay within `buffer_bytes_max`.

Must not import the consumer, the group or tidelog/admin.
"""
