"""What all parts of a broker stand on: timers, turns, background work, purgatory, peers, counting."""
