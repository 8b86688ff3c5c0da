"""Other protocols at the same topics: each gateway is an ordinary Kafka client of any cluster."""
