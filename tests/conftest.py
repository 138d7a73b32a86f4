"""Hypothesis profiles: few examples for every run, many for a long one: `pytest --hypothesis-profile=long`."""

import signal

from hypothesis import HealthCheck, settings

# Steps and models are slow to import and to build, which is no fault of an example.
settings.register_profile("ci", max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("ci"), max_examples=20_000)
settings.load_profile("ci")

# A shell that starts the tests in the background has Ctrl-C ignored, which the tests of Ctrl-C cannot do without.
signal.signal(signal.SIGINT, signal.default_int_handler)
