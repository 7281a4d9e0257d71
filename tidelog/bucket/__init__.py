"""Reads a bucket without a broker: audits it, and restores a cluster's metadata from it.

audit.py and history_audit.py find damage; restore_evidence.py collects, restore_plan.py decides (pure), restore.py writes.
"""
