"""Consumer groups: a pure machine whose durable state is the records of __consumer_offsets."""
