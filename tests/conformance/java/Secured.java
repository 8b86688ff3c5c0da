// The Java client on secured listeners: one properties file and one topic after the other, all in one JVM.
// Usage: Secured <properties> <topic> [<properties> <topic> ...]. Prints a line for each: the values read, or the error.

import java.io.FileReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Secured {
    public static void main(String[] arguments) throws Exception {
        for (int index = 0; index < arguments.length; index += 2) {
            String outcome;
            long started = System.nanoTime();
            try {
                outcome = String.join(",", run(arguments[index], arguments[index + 1]));
            } catch (Throwable failure) {
                Throwable cause = failure;
                while (cause.getCause() != null) cause = cause.getCause();
                long elapsed = (System.nanoTime() - started) / 1_000_000;
                outcome = "error after " + elapsed + " ms: " + failure + " / " + cause;
            }
            System.out.println(outcome.replace('\n', ' '));
        }
        System.exit(0);
    }

    static Properties properties(String file) throws Exception {
        Properties properties = new Properties();
        try (FileReader reader = new FileReader(file, StandardCharsets.UTF_8)) {
            properties.load(reader);
        }
        properties.put("request.timeout.ms", "5000");
        properties.put("default.api.timeout.ms", "10000");
        return properties;
    }

    static List<String> run(String file, String topic) throws Exception {
        try (Admin admin = Admin.create(properties(file))) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get(15, TimeUnit.SECONDS);
        }
        Properties plain = properties(file);
        try (var producer = new KafkaProducer<>(plain, new StringSerializer(), new StringSerializer())) {
            for (String value : List.of("one", "two")) {
                producer.send(new ProducerRecord<>(topic, value)).get(10, TimeUnit.SECONDS);
            }
        }
        Properties transactional = properties(file);
        transactional.put("transactional.id", topic + "-id");
        try (var producer = new KafkaProducer<>(transactional, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "committed"));
            producer.commitTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "aborted"));
            producer.abortTransaction();
        }
        Properties reading = properties(file);
        reading.put("group.id", topic + "-group");
        reading.put("auto.offset.reset", "earliest");
        reading.put("isolation.level", "read_committed");
        List<String> received = new ArrayList<>();
        try (var consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long deadline = System.nanoTime() + 15_000_000_000L;
            while (received.size() < 3 && System.nanoTime() < deadline) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> received.add(record.value()));
            }
            consumer.commitSync();
        }
        return received;
    }
}
