"""The AMQP 0-9-1 door: exchanges and queues over topics and share groups of any Kafka cluster.

From below: `kafka_link` and `kafka_access` speak to the cluster as one user, `record_writer` and
`share_member` write and read topics with them; `definitions` and `definitions_log` are what exists,
`routing` where a message goes, `messages` how it becomes a record; `queue_reader` deals a queue's records
out; `framing`, `connection` and `channel` speak AMQP; `gateway` puts it together.
"""
