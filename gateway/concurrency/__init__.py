"""Runs work beside requests: tasks that outlive their caller, threads for CPU work, waits that a shutdown interrupts."""
