"""Copies all metadata to one object on the bucket, and marks a cluster that is being restored from such a copy.

Must not import a particular store: a snapshot is read from and restored to any of them.
"""
