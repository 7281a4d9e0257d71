"""Runs `tidelog demo`: a broker that is killed while producers write flights, and the proof that no record was lost.

Entry: run.py.
"""
