"""Implements `tidelog backfill`: brings Parquet files into a topic's history. plan.py decides (pure), command.py parses."""
