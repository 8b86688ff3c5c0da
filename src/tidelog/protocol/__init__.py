"""Bytes to messages: framing, headers, the table of APIs and versions. Knows neither sockets nor disk."""
