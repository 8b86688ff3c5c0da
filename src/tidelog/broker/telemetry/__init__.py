"""What a broker tells of itself: its metrics, as numbers and as text."""
