"""The schema registry: Confluent's HTTP API over schemas that live in a compacted topic of any Kafka
cluster.

From the bottom up: `entities` and `records` (values and how they are kept in the topic), `state` (what the
topic says, in memory), `formats` and `compatibility` (Avro, JSON Schema, Protobuf), `decisions` (what a
change writes, or why it is refused; pure), `schema_log`, `election` and `writer` (the topic, who may write,
the fence), `access` (logins and rights), `service` and the HTTP application. docs/registry.md says what
users are promised.
"""
