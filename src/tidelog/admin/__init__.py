"""One typed way to ask and change a cluster, any that speaks the Kafka protocol, with our own client."""
