"""The words of the system: identifiers, errors, settings, metadata records and the cluster image.

Imports nothing else.
"""
