"""Runs the controller: the one broker that appoints leaders, mirrors topics to the bucket and takes snapshots of the metadata.

Decisions are in metadata/controller. Entry: `Controller` in controller.py. Must not import cluster/ or anything above it.
"""
