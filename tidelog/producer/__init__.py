"""Sends records: collects them in batches by partition, and sends each batch to its leader until its outcome is known.

    producer.py ─▶ accumulator.py ─▶ partition_queue.py ─▶ ready_queue.py ─▶ sender.py     outcomes settle in batch.py

Entry: `Producer` in producer.py. Must not import the consumer or the group.
"""
