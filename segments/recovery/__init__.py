"""Restores the state of partitions from the sessions of earlier leaders, before a new leader serves them.

recover.py reads footers (footer_cache.py) and builds recovered_partition.py; takeover_prefetch.py starts that reading before the
session is registered. Must not import log/ or read/.
"""
