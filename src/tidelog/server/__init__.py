"""What a broker has sockets with: listeners, connections, timers, worker threads, the process."""
