"""A pytest plugin and helpers that run a real broker inside a test."""
