"""The asyncio edge: listeners, connections, timers, worker threads, the process."""
