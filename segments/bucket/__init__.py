"""Names what lies on the bucket beside records: keys, the cluster's record, markers of deletions and restores.

Entries: layout.py (every key), cluster_record.py (`cluster.json`), markers.py and deleted_topic.py.

Invariants:
- layout.py spells every key, and no other module does.
- All objects here are create-only.

Must not import segments/wal, segments/history or anything above them.
"""
