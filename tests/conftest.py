"""Hypothesis profiles: `fast` for every run (few examples, always the same ones), `deep` for a night's run."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fast",
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep",
    max_examples=5000,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("RMQKIT_HYPOTHESIS", "fast"))
