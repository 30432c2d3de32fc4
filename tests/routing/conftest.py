"""Property tests here run numerical code on whatever cores there are: no deadline, no timing in tests."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None, max_examples=60)
settings.load_profile("no-deadline")
