"""Sends records: collects them in batches by partition, and sends each batch to its leader until its outcome is known.

    producer.py ─▶ accumulator.py ─▶ partition_queue.py ─▶ ready_queue.py ─▶ sender.py     outcomes settle in batch.py

Entry: `Producer` in producer.py.

Invariants:
- Batches of a partition are appended in the order of `send`, each once (idempotent producer).
- Every record gets an outcome: an offset, a refusal, or OutcomeUnknown.
- Buffered bytes stay within `buffer_bytes_max`.

After a refusal or a lost answer the client awaits all outstanding answers. Then it decides about all batches together, in order, by
what the oldest one met:

- a retryable refusal, or a broken stream: All are sent again in order, with the same bytes and sequences, until
  `delivery_timeout_ms`.
- a rejection (too large, unknown topic, …): It fails, and later batches take over its sequences. After an attempt without an
  answer it fails as OutcomeUnknown.
- its deadline, and it may be in the log: It fails as OutcomeUnknown. Later batches keep their sequences.
- "out of order", after such a doubtful batch: Batches sent over a broken connection fail as OutcomeUnknown. The rest uses the
  producer's next epoch, which fences late arrivals.
- "out of order", without a known reason: Acknowledged records are missing at the broker: it fails.
- "unknown producer" (expired), nothing in doubt: The rest uses the next epoch.
- "unknown producer", and it may be in the log: It fails as OutcomeUnknown: under a new id it might be written twice.

Must not import the consumer, the group or tidelog/admin.
"""
