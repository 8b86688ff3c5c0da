"""How replicas of a partition stay the same: what a leader knows of its followers, what a follower asks."""
