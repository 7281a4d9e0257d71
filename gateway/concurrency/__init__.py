"""Runs work beside requests: detached tasks, CPU work in threads, and waits that a shutdown interrupts.

- detached_tasks.py: tasks that continue when their caller disconnects; the broker owns them.
- offload.py: CPU work in a bounded number of threads, or in steps that yield to the event loop.
- shutdown.py: long polls and streams, and the switch that ends them.
- coordinator_retry.py: waits until a consumer group has a coordinator.

Invariant: every task has an owner, and every queue a bound. Must not import anything of the gateway but proto/ and error_codes.py.
"""
