"""Decides which broker leads which partition. Pure: the broker's controller brings the state and writes the result.

    ledger.py (states, sorted by what is to be done) ─▶ plan.py ─▶ placement.py

Entry: `plan` in plan.py.

Invariants:
- A plan costs as much as has changed, not as much as there are partitions.
- Loads differ by at most one afterwards; no more partitions move than that takes.
- A live leader is asked to hand over, never overruled.

Must not import a store's implementation, or anything above metadata.
"""
