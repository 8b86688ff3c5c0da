// Transactions with the Java client, which speaks transactions v2 (KIP-890) when the cluster offers it.
// Usage: Transactions <bootstrap> <topic with two partitions> <prefix of ids>. Prints name=value lines.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Transactions {
    static String bootstrap;
    static String topic;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        String prefix = arguments[2];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            say("version", admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version").maxVersionLevel());
            ends(admin, prefix + "-ends");
            zombie(prefix + "-zombie");
            fenceByAdmin(admin, prefix + "-admin");
            timeout(admin, prefix + "-timeout");
            hanging(admin, prefix + "-hanging");
        }
        read();
        System.exit(0);
    }

    static void ends(Admin admin, String id) throws Exception {
        try (var producer = producer(id, 60_000)) {
            producer.initTransactions();
            for (int round = 0; round < 3; round++) {
                producer.beginTransaction();
                producer.send(record(0, "committed-" + round));
                producer.send(record(1, "committed-" + round));
                producer.commitTransaction();
                say("epoch", epoch(admin, id));
                producer.beginTransaction();
                producer.send(record(0, "aborted-" + round)).get();
                if (round == 1) {
                    say("state", admin.describeTransactions(List.of(id)).description(id).get().state());
                }
                producer.abortTransaction();
                say("epoch", epoch(admin, id));
            }
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(record(1, "with-offsets"));
            var place = new TopicPartition(topic, 0);
            producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(3, "note")), new ConsumerGroupMetadata(id));
            producer.commitTransaction();
            say("offset", admin.listConsumerGroupOffsets(id).partitionsToOffsetAndMetadata().get().get(place).offset());
            say("state", admin.describeTransactions(List.of(id)).description(id).get().state());
        }
    }

    static void zombie(String id) throws Exception {
        try (var first = producer(id, 60_000); var second = producer(id, 60_000)) {
            first.initTransactions();
            first.beginTransaction();
            first.send(record(0, "zombie")).get();
            second.initTransactions();
            say("fenced", failure(() -> {
                first.send(record(0, "zombie")).get();
                first.commitTransaction();
            }));
            second.beginTransaction();
            second.send(record(0, "second"));
            second.commitTransaction();
        }
    }

    static void fenceByAdmin(Admin admin, String id) throws Exception {
        try (var producer = producer(id, 60_000)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(record(0, "zombie")).get();
            admin.fenceProducers(List.of(id)).all().get();
            say("fenced", failure(producer::commitTransaction));
        }
    }

    static void timeout(Admin admin, String id) throws Exception {
        try (var producer = producer(id, 1_000)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(record(0, "too-late")).get();
            while (admin.describeTransactions(List.of(id)).description(id).get().state().toString().equals("Ongoing")) {
                Thread.sleep(50);
            }
            say("late", failure(producer::commitTransaction));
        }
    }

    static void hanging(Admin admin, String id) throws Exception {
        try (var producer = producer(id, 60_000)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(record(1, "hangs")).get();
            var place = new TopicPartition(topic, 1);
            var states = admin.describeProducers(List.of(place)).partitionResult(place).get().activeProducers();
            var open = states.stream().filter(state -> state.currentTransactionStartOffset().isPresent()).findFirst().get();
            say("listed", admin.listTransactions().all().get().stream().anyMatch(listing -> listing.transactionalId().equals(id)));
            admin.abortTransaction(new AbortTransactionSpec(
                place, open.producerId(), (short) open.producerEpoch(), open.coordinatorEpoch().orElse(0))).all().get();
            say("open", admin.describeProducers(List.of(place)).partitionResult(place).get().activeProducers().stream()
                .filter(state -> state.currentTransactionStartOffset().isPresent()).count());
        }
    }

    static void read() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            for (int partition = 0; partition < 2; partition++) {
                var place = new TopicPartition(topic, partition);
                consumer.assign(List.of(place));
                consumer.seekToBeginning(List.of(place));
                long end = consumer.endOffsets(List.of(place)).get(place);
                List<String> values = new ArrayList<>();
                while (consumer.position(place) < end) {
                    for (var record : consumer.poll(Duration.ofMillis(200))) {
                        values.add(new String(record.value(), StandardCharsets.UTF_8));
                    }
                }
                say("read", String.join(",", values));
            }
        }
    }

    interface Action {
        void run() throws Exception;
    }

    static String failure(Action action) {
        try {
            action.run();
            return "none";
        } catch (Exception failure) {
            Throwable cause = failure instanceof java.util.concurrent.ExecutionException ? failure.getCause() : failure;
            return cause.getClass().getSimpleName();
        }
    }

    static long epoch(Admin admin, String id) throws Exception {
        return admin.describeTransactions(List.of(id)).description(id).get().producerEpoch();
    }

    static KafkaProducer<byte[], byte[]> producer(String id, int timeoutMs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, id);
        settings.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, timeoutMs);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static ProducerRecord<byte[], byte[]> record(int partition, String value) {
        return new ProducerRecord<>(topic, partition, null, value.getBytes(StandardCharsets.UTF_8));
    }

    static void say(String name, Object value) {
        System.out.println(name + "=" + value);
    }
}
