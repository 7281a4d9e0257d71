"""Names what lies on the bucket beside records: the layout of keys, the cluster's record, and markers of deletions and restores.

topic_catalog.py writes and reads what the bucket knows of topics.
layout.py spells every key of the bucket, and no other module does.
"""
