"""Writes rows of Spark to topics, each row once: tasks stage files, one commit chooses them, the driver delivers them.

    options.py ─▶ row_encoder.py ─▶ staging.py ─▶ commit.py ─▶ delivery.py

Entries: `TidelogWriter` and `TidelogStreamWriter` in writer.py.

Invariants:
- Of several attempts of a batch, one is chosen by a create-only object.
- Delivery uses an idempotent producer for each partition, so a repeated delivery appends nothing.
- Rows that a topic would refuse are refused before anything is staged.

- The driver sends nothing that brokers may have forgotten: a partition without an acknowledgement gets nothing of a batch
  chosen longer ago than nine tenths of `producer_expiry_ms`.
- A batch write has a random id, or the option `writeId`. Without it a killed driver leaves part of the rows. `foreachBatch`
  needs one for each batch.
- Refusals come before a task starts (options, columns, modes, topic, brokers, bucket) or while a task stages (before 1970,
  too large, too far in the future), because a later refusal would block a chosen batch.
- A row's partition is its column `partition`, else the hash of its key as in Kafka's clients, else chosen in chunks. A
  recreated topic is refused by its id. With `failOnDataLoss=false` a stream goes on with the new topic, and a batch of one
  topic is chosen again as `chosen-{topic id}`.
- Two brokers must agree on a topic's id before rows are staged and before they are chosen (`sink/topic_views.py`). A broker
  that has not heard from the metadata store for 5 s does not count.
"""
