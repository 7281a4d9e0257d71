"""Lets Spark find the data source `tidelog` without registration: it imports each module whose name begins with pyspark_.

Where this can't be imported, Spark drops the sources of all such modules, and says only that there is no `tidelog`.
"""

from __future__ import annotations

from spark.source import TidelogSource as DefaultSource

__all__ = ["DefaultSource"]
