"""Writes rows of Spark to topics, each row once: tasks stage files, one commit chooses them, the driver delivers them.

    options.py ─▶ row_encoder.py ─▶ staging.py ─▶ commit.py ─▶ delivery.py

Entries: `TidelogWriter` and `TidelogStreamWriter` in writer.py.

Invariants:
- Of several attempts of a batch, one is chosen by a create-only object.
- Delivery uses an idempotent producer for each partition, so a repeated delivery appends nothing.
- Rows that a topic would refuse are refused before anything is staged.
"""
