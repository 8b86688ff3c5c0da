// Operations of producers: plain, idempotent and transactional ones.

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class ProducerOperations {
    final ClientSessions.Session session;
    final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    // What was sent and not asked for yet.
    final Map<String, List<Future<RecordMetadata>>> sent = new HashMap<>();

    ProducerOperations(ClientSessions.Session session) {
        this.session = session;
    }

    void register() {
        var operations = session.operations;
        operations.put("new_producer", this::make);
        operations.put("init_transactions", fields -> done(fields, producer -> producer.initTransactions()));
        operations.put("begin", fields -> done(fields, producer -> producer.beginTransaction()));
        operations.put("commit", fields -> ended(fields, producer -> producer.commitTransaction()));
        operations.put("abort", fields -> ended(fields, producer -> producer.abortTransaction()));
        operations.put("send", this::send);
        operations.put("flush", fields -> ended(fields, KafkaProducer::flush));
        operations.put("send_offsets", this::sendOffsets);
        operations.put("producer_partitions_for", fields -> ConsumerOperations.shownPartitions(producer(fields).partitionsFor(fields.get("topic").asText())));
        operations.put("close_producer", this::closeOne);
    }

    KafkaProducer<byte[], byte[]> producer(JsonNode fields) {
        var found = producers.get(fields.get("producer").asText());
        if (found == null) {
            throw new IllegalArgumentException("no such producer");
        }
        return found;
    }

    Object make(JsonNode fields) {
        String name = fields.get("producer").asText();
        var settings = session.settings(fields, name);
        producers.put(name, new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer()));
        sent.put(name, new ArrayList<>());
        return "done";
    }

    interface Act {
        void on(KafkaProducer<byte[], byte[]> producer);
    }

    Object done(JsonNode fields, Act act) {
        act.on(producer(fields));
        return "done";
    }

    // An act behind which everything that was sent has come to something.
    Object ended(JsonNode fields, Act act) {
        Object outcome = "done";
        try {
            act.on(producer(fields));
        } catch (RuntimeException failure) {
            outcome = Outcomes.error(failure);
        }
        return Outcomes.map("outcome", outcome, "sent", taken(fields));
    }

    List<Object> taken(JsonNode fields) {
        var outcomes = new ArrayList<Object>();
        for (var future : sent.getOrDefault(fields.get("producer").asText(), List.of())) {
            outcomes.add(Outcomes.future(future, fields.path("wait_seconds").asLong(Outcomes.SECONDS_MAX), ProducerOperations::shown));
        }
        sent.put(fields.get("producer").asText(), new ArrayList<>());
        return outcomes;
    }

    static Object shown(RecordMetadata metadata) {
        return Outcomes.map("at", metadata.topic() + "-" + metadata.partition(), "offset", metadata.hasOffset() ? metadata.offset() : null,
            "timestamp", metadata.hasTimestamp() ? metadata.timestamp() : null);
    }

    static byte[] bytes(JsonNode text) {
        return text.isMissingNode() || text.isNull() ? null : text.asText().getBytes(StandardCharsets.UTF_8);
    }

    static byte[] value(JsonNode row) {
        return row.has("size") ? "x".repeat(row.get("size").asInt()).getBytes(StandardCharsets.UTF_8) : bytes(row.path("value"));
    }

    Object send(JsonNode fields) {
        var producer = producer(fields);
        var futures = sent.get(fields.get("producer").asText());
        for (JsonNode row : fields.get("records")) {
            try {
                var record = new ProducerRecord<>(row.get("topic").asText(), row.has("partition") ? row.get("partition").asInt() : null,
                    row.has("timestamp") ? row.get("timestamp").asLong() : null, bytes(row.path("key")), value(row));
                row.path("headers").forEach(header -> record.headers().add(header.get(0).asText(), bytes(header.get(1))));
                futures.add(producer.send(record));
            } catch (RuntimeException failure) {
                futures.add(CompletableFuture.failedFuture(failure));
            }
        }
        if (!fields.path("wait").asBoolean(true)) {
            return "sent";
        }
        // No flush: it would wait forever for a record that a failed transaction holds back.
        return taken(fields);
    }

    Object sendOffsets(JsonNode fields) {
        String consumer = fields.path("consumer").asText("");
        ConsumerGroupMetadata group = consumer.isEmpty()
            ? new ConsumerGroupMetadata(fields.get("group").asText()) : session.consumers.consumer(consumer).groupMetadata();
        producer(fields).sendOffsetsToTransaction(Outcomes.offsets(fields.get("offsets")), group);
        return "done";
    }

    Object closeOne(JsonNode fields) {
        producer(fields).close(Duration.ofMillis(fields.path("timeout_ms").asLong(10_000)));
        var outcomes = taken(fields);
        producers.remove(fields.get("producer").asText());
        return outcomes;
    }

    void close() {
        producers.values().forEach(producer -> producer.close(Duration.ZERO));
        producers.clear();
    }
}
