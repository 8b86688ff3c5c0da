"""Real Kafka clients behind one small face, so that every test can be asked of every client.

`contract` holds the face; each other module drives one client library or program and nothing else. A driver
never imitates the protocol: what reaches the broker is what that client really sends.
"""
