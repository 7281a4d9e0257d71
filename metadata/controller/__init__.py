"""Decides which broker leads which partition. Pure: the broker's controller brings the state and writes the result.

plan.py says what the controller does next, ledger.py which partitions need a leader, placement.py which broker gets each of them.
Must not import asyncio, a store, or anything of the gateway.
"""
