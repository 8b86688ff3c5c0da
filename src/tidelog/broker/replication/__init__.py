"""Roles of replicas, and what follows from them: fetching, ISR changes, log directories, moves."""
