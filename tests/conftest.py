"""What holds for every test: time limits are pytest's; those of single examples break on a busy machine."""

from hypothesis import settings

settings.register_profile("tidelog", deadline=None)
settings.load_profile("tidelog")
