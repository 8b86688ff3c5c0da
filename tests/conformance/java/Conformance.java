// The Java client, driven by tests/conformance/test_conformance_java.py; run as a single source file:
//
//     java -cp kafka-clients.jar:... Conformance.java BOOTSTRAP SCENARIO ARGUMENT...
//
// Each scenario prints one `name=value` line for each thing it saw; the Python test compares them. An exception ends it
// with exit code 1 and the trace on standard error.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Conformance {
    static final Duration POLL = Duration.ofMillis(200);
    static final long DEADLINE_MS = 20_000;
    static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        List<String> rest = List.of(arguments).subList(2, arguments.length);
        switch (arguments[1]) {
            case "produce" -> produce(rest.get(0), rest.get(1), rest.get(2), Integer.parseInt(rest.get(3)));
            case "consume" -> consume(rest.get(0), Integer.parseInt(rest.get(1)));
            case "group" -> group(rest.get(0), rest.get(1), rest.get(2), Integer.parseInt(rest.get(3)));
            case "admin" -> admin(rest.get(0));
            case "eligible" -> eligible(rest.get(0));
            case "matrix" -> matrix(rest);
            default -> throw new IllegalArgumentException(arguments[1]);
        }
    }

    static void say(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    static Properties properties(String... pairs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        for (int index = 0; index < pairs.length; index += 2) {
            properties.put(pairs[index], pairs[index + 1]);
        }
        return properties;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String encoded(byte[] data) {
        return data == null ? "null" : Base64.getEncoder().encodeToString(data);
    }

    // Every topic of `codec:acks:topic`, in this one Java process since each start of Java costs a second.
    static void matrix(List<String> specifications) throws Exception {
        for (String specification : specifications) {
            String[] parts = specification.split(":");
            produce(parts[2], parts[0], parts[1], 12);
        }
    }

    // Numbered records, the default partitioner for those with a key, partition 0 for every third, without one.
    static void produce(String topic, String codec, String acks, int count) throws Exception {
        Properties settings = properties("compression.type", codec, "acks", acks, "linger.ms", "5");
        settings.put("enable.idempotence", acks.equals("all") ? "true" : "false");
        List<java.util.concurrent.Future<RecordMetadata>> answers = new ArrayList<>();
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int number = 0; number < count; number++) {
                boolean keyless = number % 3 == 2;
                byte[] key = keyless ? null : bytes("key-" + number);
                byte[] value = number % 4 == 3 ? null : bytes("value-" + number);
                var record = new ProducerRecord<>(topic, keyless ? 0 : null, 1_700_000_000_000L + number, key, value);
                record.headers().add("number", bytes("" + number)).add("twice", new byte[] {0, -1}).add("twice", null);
                answers.add(producer.send(record));
            }
            for (var answer : answers) {
                RecordMetadata metadata = answer.get(DEADLINE_MS, TimeUnit.MILLISECONDS);
                say("produced", metadata.partition() + " " + (acks.equals("0") ? "?" : metadata.offset()));
            }
        }
    }

    static void show(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder headers = new StringBuilder();
        for (Header header : record.headers()) {
            headers.append(' ').append(header.key()).append(':').append(encoded(header.value()));
        }
        say("record", record.topic() + " " + record.partition() + " " + record.offset() + " " + record.timestamp() + " "
            + encoded(record.key()) + " " + encoded(record.value()) + headers);
    }

    static void consume(String topics, int count) {
        Properties settings = properties("auto.offset.reset", "earliest", "fetch.max.wait.ms", "100");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (String topic : topics.split(",")) {
                consumer.partitionsFor(topic).forEach(each -> partitions.add(new TopicPartition(topic, each.partition())));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            poll(consumer, count);
            say("end", consumer.endOffsets(partitions).values().stream().mapToLong(Long::longValue).sum());
            say("beginning", consumer.beginningOffsets(partitions).values().stream().mapToLong(Long::longValue).sum());
        }
    }

    static void poll(KafkaConsumer<byte[], byte[]> consumer, int count) {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        int received = 0;
        while (received < count) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("read " + received + " of " + count);
            }
            for (var record : consumer.poll(POLL)) {
                show(record);
                received++;
            }
        }
    }

    static void group(String protocol, String group, String topic, int count) {
        Properties settings = properties("auto.offset.reset", "earliest", "group.id", group, "group.protocol", protocol,
            "enable.auto.commit", "false", "fetch.max.wait.ms", "100");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            poll(consumer, count);
            consumer.commitSync();
            for (var entry : consumer.committed(consumer.assignment()).entrySet()) {
                say("committed", entry.getKey().partition() + " " + entry.getValue().offset());
            }
        }
    }

    interface Call {
        Object get() throws Exception;
    }

    static void expect(String name, Call call) throws Exception {
        try {
            say(name, call.get());
        } catch (ExecutionException failure) {
            say(name, failure.getCause().getClass().getSimpleName());
        }
    }

    static <T> T known(java.util.concurrent.Callable<T> call) throws Exception {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (true) {
            try {
                return call.call();
            } catch (ExecutionException failure) {
                if (!failure.getCause().getClass().getSimpleName().equals("UnknownTopicOrPartitionException")
                    || System.currentTimeMillis() > deadline) {
                    throw failure;
                }
                Thread.sleep(20);
            }
        }
    }

    /** Who may lead each partition next (KIP-966), and the feature that says so. */
    static void eligible(String topic) throws Exception {
        try (Admin admin = Admin.create(properties())) {
            TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            described.partitions().forEach(each -> {
                say("elr." + each.partition(), each.elr().stream().map(node -> node.id()).toList());
                say("last." + each.partition(), each.lastKnownElr().stream().map(node -> node.id()).toList());
            });
            say("feature", admin.describeFeatures().featureMetadata().get()
                .finalizedFeatures().get("eligible.leader.replicas.version").maxVersionLevel());
        }
    }

    static void admin(String topic) throws Exception {
        try (Admin admin = Admin.create(properties())) {
            NewTopic wanted = new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "4711"));
            CreateTopicsResult created = admin.createTopics(List.of(wanted));
            say("created.partitions", created.numPartitions(topic).get());
            say("created.replication", created.replicationFactor(topic).get());
            say("created.retention", created.config(topic).get().get("retention.ms").value());
            expect("again", () -> admin.createTopics(List.of(wanted)).all().get());
            expect("bad.name", () -> admin.createTopics(List.of(new NewTopic("a b", 1, (short) 1))).all().get());
            expect("bad.replicas", () -> admin.createTopics(List.of(new NewTopic(topic + "-r", 1, (short) 9))).all().get());
            expect("bad.config", () -> admin.createTopics(
                List.of(new NewTopic(topic + "-c", 1, (short) 1).configs(Map.of("no.such", "1")))).all().get());

            TopicDescription described = known(() -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic));
            say("described.id", described.topicId().equals(created.topicId(topic).get()));
            say("described.partitions", described.partitions().size());
            say("described.leaders", described.partitions().stream().allMatch(each -> each.isr().contains(each.leader())));
            say("listed", admin.listTopics().names().get().contains(topic));

            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            say("config.retention", config(admin, resource).get("retention.ms").value());
            say("config.source", config(admin, resource).get("retention.ms").source());
            say("config.default", config(admin, resource).get("segment.bytes").source());
            Collection<AlterConfigOp> change = List.of(
                new AlterConfigOp(new ConfigEntry("retention.ms", "815"), AlterConfigOp.OpType.SET));
            admin.incrementalAlterConfigs(Map.of(resource, change)).all().get();
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (!config(admin, resource).get("retention.ms").value().equals("815")
                && System.currentTimeMillis() < deadline) {
                Thread.sleep(20);
            }
            say("config.changed", config(admin, resource).get("retention.ms").value());

            produceForOffsets(topic);
            TopicPartition partition = new TopicPartition(topic, 0);
            say("offset.earliest", offset(admin, partition, OffsetSpec.earliest()));
            say("offset.latest", offset(admin, partition, OffsetSpec.latest()));
            say("offset.max", offset(admin, partition, OffsetSpec.maxTimestamp()));
            say("offset.time", offset(admin, partition, OffsetSpec.forTimestamp(1_500)));
            admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(2))).all().get();
            say("offset.deleted", offset(admin, partition, OffsetSpec.earliest()));

            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
            long grown = System.currentTimeMillis() + DEADLINE_MS;
            int partitions = 0;
            while (partitions != 5 && System.currentTimeMillis() < grown) {
                partitions = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
            }
            say("grown", partitions);
            say("cluster.nodes", admin.describeCluster().nodes().get().size());
            say("cluster.controller", admin.describeCluster().controller().get() != null);
            int broker = admin.describeCluster().nodes().get().iterator().next().id();
            say("logdirs", admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker).values().stream()
                .anyMatch(each -> each.replicaInfos().containsKey(partition)));
            say("producers", admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers().size());
            admin.deleteTopics(List.of(topic)).all().get();
            expect("deleted", () -> admin.deleteTopics(List.of(topic)).all().get());
        }
    }

    static Config config(Admin admin, ConfigResource resource) throws Exception {
        return known(() -> admin.describeConfigs(List.of(resource)).all().get().get(resource));
    }

    static String offset(Admin admin, TopicPartition partition, OffsetSpec specification) throws Exception {
        var found = admin.listOffsets(Map.of(partition, specification)).partitionResult(partition).get();
        return found.offset() + " " + found.timestamp();
    }

    static void produceForOffsets(String topic) throws Exception {
        Properties settings = properties("batch.size", "0");
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (long timestamp : new long[] {1_000, 3_000, 2_000}) {
                producer.send(new ProducerRecord<>(topic, 0, timestamp, null, bytes("x"))).get();
            }
        }
    }
}
