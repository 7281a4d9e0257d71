"""Implements `tidelog replay`: copies records between topics by Spark. plan.py decides (pure), replay.py runs, command.py
parses."""
