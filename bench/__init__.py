"""Measurements; `make help` names those that have a target."""
