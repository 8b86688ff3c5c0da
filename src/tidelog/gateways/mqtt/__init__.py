"""MQTT 3.1.1 and 5 at Kafka topics.

From the bottom up: `packets`, `properties` and `framing` (bytes to packets and back; no I/O), `filters`
(topic filters and who subscribed), `mapping` (which Kafka topic a message goes to, and its key), `messages`
(a message as a Kafka record), `session` (what a client is owed; pure), `session_record` (the same in the
log); `publisher`, `commits`, `feed`, `catch_up`, `state_log` and `share_feed` (the cluster's side, each with
its thread); `connection` and `web_socket` (sockets), `gateway` (all of it together). docs/gateways-mqtt.md
says what users are promised.
"""
