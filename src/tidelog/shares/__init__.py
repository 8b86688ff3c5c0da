"""Share groups (KIP-932): which records of a partition are whose, and how that survives. Pure machines."""
