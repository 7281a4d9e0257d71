"""Pipelines to copy: each file is one recipe, a function from DataFrames to a DataFrame, and a command that runs it.

    python -m tidelog.pipelines.hourly_delays --bucket s3://BUCKET/PREFIX

    hourly_delays       tumbling windows: delays of each carrier, hour by hour, and a chart of them
    rolling_delays      hopping windows: delays of each airport over three hours, every hour
    aircraft_days       session windows: what an aircraft flew between two rests
    knock_on_delays     two streams joined: departures of aircraft that had landed late before
    latest_by_key       a compacted topic as a table
    hot_keys            which keys have the most records, and how uneven the partitions are

The first four read the flights that `tidelog demo` writes, as a batch, or with --checkpoint as a stream. The others take any topic.
"""

import importlib.util

if importlib.util.find_spec("pyspark") is None:  # one line instead of a traceback from the recipes' imports
    raise ImportError("PySpark is not installed. Install it: pip install 'tidelog[spark]'")
