"""What one broker needs to speak to another as its client: frames, requests, answers."""
