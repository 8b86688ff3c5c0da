"""The web console: an ordinary Kafka client with pages, for any Kafka-protocol cluster.

`application.create_application` makes the Starlette application, `serving.serve` runs it. Everything shown
comes from client calls: `kafka_client` (confluent-kafka) and, for what that does not offer, `wire_client`
(our own wire client). One `watcher` thread polls the cluster; pages are drawn from what it saw last, and
questions about one topic, group or record are asked when a page needs them.
"""
