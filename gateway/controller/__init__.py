"""Runs the controller: the one broker that seals dead sessions, appoints leaders and copies metadata to the bucket.

    elected (a key under the broker's lease) ─▶ plan (metadata/controller) ─▶ seal, write ─▶ wait for a change

Entry: `Controller` in controller.py. Beside it run topic_mirror.py and metadata_snapshots.py, which copy topics and metadata to the
bucket, and revision_compaction.py, which compacts etcd's revisions.

Invariants:
- Every write is guarded by the controller's key and by the cluster's id.
- A session is sealed only after a fresh read shows that its broker is not registered.
- A partition gets a new leader only after its former leader's session is sealed.

Must not import gateway/cluster, routing/ or a listener.
"""
