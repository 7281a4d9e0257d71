"""Reads records as a member of a consumer group: membership, positions, commits.

    consumer.py ─▶ reader.py ─▶ positions.py, commits.py, start_offsets.py
                            └─▶ coordinator_client.py (gRPC)      member states and rebalances: metadata's group member package

Entry: `GroupConsumer` in consumer.py.

Invariants:
- A record is committed only after the caller has asked for the next one.
- A partition is given up after its last record was processed and committed.

- The member commits every `auto_commit_interval_ms`, before a partition moves, and at the end. A loop cannot distinguish
  `break` from a failure, so only a block counts the last record.
- A caller that takes longer than `max_poll_interval_ms` loses its partitions: nothing of them is committed, and `commit()`
  raises StaleMember once. A process that was frozen checks its own clock, within 50 ms.
- A partition begins at its committed offset, else at `auto_offset_reset` (default earliest). With "latest" the member commits
  the end at once. With "error" the partition is not read, and the error is raised last.
- A recreated topic, an added partition and a topic that a new right makes visible are read from their start. A log that was cut
  below the committed offset is read from the cut, with a warning.
- Callbacks run one at a time; processed records are committed before `on_revoked`. `seek` and explicit commits override
  automatic ones. `follow=False` ends at the high watermark of the assignment. An `instance_id` makes a restart within the
  session timeout move nothing.

Must not import the client or the command line.
"""
