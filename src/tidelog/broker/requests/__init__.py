"""From a frame to an answer: the dispatcher, fast paths, guards, quotas, and one handler for each API."""
