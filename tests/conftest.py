"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)  # shared machines stall; tests never time
settings.load_profile("steady")
