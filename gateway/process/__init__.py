"""Starts and stops the processes of Tidelog: a broker, or a compactor. Configures logging, malloc, the garbage collector and
limits.

The top of the gateway: the command line calls it, and nothing below imports it.
"""
