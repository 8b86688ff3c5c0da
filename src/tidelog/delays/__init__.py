"""Delayed records: what of a delay partition is forwarded, and what is next. See docs/delays.md."""
