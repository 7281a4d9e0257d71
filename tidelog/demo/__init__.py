"""Runs `tidelog demo`: a broker is killed while producers write flights, and every row is compared afterwards.

Entry: run.py.

The demo uses the SDK and the command line as a user would; it reaches into no other package.
"""
