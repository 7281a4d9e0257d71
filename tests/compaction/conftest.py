"""Property tests have no deadline per example: the machines that run them are shared, and first examples pay for imports."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
