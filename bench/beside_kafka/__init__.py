"""Real clients against Tidelog and against Apache Kafka, in turns, in one run (`make bench-kafka`)."""
