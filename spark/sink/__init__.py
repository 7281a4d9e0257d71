"""Writes rows of Spark to topics, each row once: tasks stage files, one commit chooses them, and the driver delivers them.

    options.py ─▶ row_encoder.py ─▶ staging.py ─▶ commit.py ─▶ delivery.py

Entry: `TidelogWriter` in writer.py.
"""
