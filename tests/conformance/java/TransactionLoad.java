// Transactions one after the other with the Java client, several batches in flight, and a look at what was written.
// Usage: TransactionLoad <bootstrap> <topic> <partitions> <prefix of ids> <shapes> <count>. Prints name=value lines.
// Shapes, with commas between them:
//
//   in-flight      <count> new producers, each with one transaction of many small batches over all partitions
//   commit-abort   <count> times: commit a transaction, begin the next, send, abort at once
//   steady         one producer commits <count> transactions; prints how long each took
//
// A failure is said on stderr and counted; the programme goes on with a new producer.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class TransactionLoad {
    static final int RECORDS = 40;
    static final int STEADY_RECORDS = 10;
    static final int WARM_UP = 20;
    static String bootstrap;
    static String topic;
    static int partitions;
    static String prefix;
    static int failures = 0;
    static double retries = 0;
    // What read_committed consumers must see, in this order within each partition and transaction.
    static final Map<String, List<String>> committed = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        partitions = Integer.parseInt(arguments[2]);
        prefix = arguments[3];
        int count = Integer.parseInt(arguments[5]);
        for (String shape : arguments[4].split(",")) {
            switch (shape) {
                case "in-flight" -> inFlight(count);
                case "commit-abort" -> commitAbort(count);
                case "steady" -> steady(count);
                default -> throw new IllegalArgumentException(shape);
            }
        }
        System.out.println("failures=" + failures);
        System.out.println("retries=" + (long) retries);
        System.out.println("wrong=" + wrong());
        System.exit(0);
    }

    static void inFlight(int count) {
        for (int number = 0; number < count; number++) {
            String id = prefix + "-in-flight-" + number;
            try (var producer = producer(id)) {
                producer.initTransactions();
                transaction(producer, id, RECORDS, number % 4 != 3);
                retries += retries(producer);
            } catch (Exception failure) {
                failed(id, failure);
            }
        }
    }

    static void commitAbort(int count) {
        KafkaProducer<byte[], byte[]> producer = null;
        for (int number = 0; number < count; number++) {
            String id = prefix + "-" + number;
            try {
                if (producer == null) {
                    producer = producer(prefix);
                    producer.initTransactions();
                }
                transaction(producer, id + "-commit", 1 + number % 7, true);
                transaction(producer, id + "-abort", 1 + number % 5, false);
            } catch (Exception failure) {
                failed(id, failure);
                producer.close(Duration.ZERO);
                producer = null;
            }
        }
        if (producer != null) {
            retries += retries(producer);
            producer.close();
        }
    }

    static void steady(int count) {
        try (var producer = producer(prefix)) {
            producer.initTransactions();
            for (int number = 0; number < WARM_UP; number++) {
                transaction(producer, prefix + "-warm-" + number, STEADY_RECORDS, true);
            }
            double[] tookMs = new double[count];
            long began = System.nanoTime();
            for (int number = 0; number < count; number++) {
                long start = System.nanoTime();
                transaction(producer, prefix + "-" + number, STEADY_RECORDS, true);
                tookMs[number] = (System.nanoTime() - start) / 1e6;
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            Arrays.sort(tookMs);
            System.out.printf("median_ms=%.2f%n", tookMs[count / 2]);
            System.out.printf("p99_ms=%.2f%n", tookMs[count * 99 / 100]);
            System.out.printf("per_second=%.1f%n", count / seconds);
            retries += retries(producer);
        } catch (Exception failure) {
            failed(prefix, failure);
        }
    }

    static void transaction(KafkaProducer<byte[], byte[]> producer, String name, int records, boolean commit) {
        producer.beginTransaction();
        List<String> values = new ArrayList<>();
        for (int number = 0; number < records; number++) {
            int partition = number % partitions;
            String value = name + "/" + partition + "/" + number;
            values.add(value);
            producer.send(new ProducerRecord<>(topic, partition, null, value.getBytes(StandardCharsets.UTF_8)));
        }
        if (commit) {
            producer.commitTransaction();
            committed.put(name, values);
        } else {
            producer.abortTransaction();
        }
    }

    static void failed(String id, Exception failure) {
        failures++;
        Throwable cause = failure;
        while (cause.getCause() != null && cause.getCause() != cause) {
            cause = cause.getCause();
        }
        System.err.println(id + ": " + failure + " / " + cause);
    }

    static double retries(KafkaProducer<byte[], byte[]> producer) {
        return producer.metrics().values().stream()
            .filter(metric -> metric.metricName().name().equals("record-retry-total") && metric.metricName().group().equals("producer-metrics"))
            .mapToDouble(metric -> (Double) metric.metricValue()).sum();
    }

    static KafkaProducer<byte[], byte[]> producer(String id) {
        var settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", id);
        settings.put("linger.ms", "0");
        settings.put("batch.size", "0");
        settings.put("max.in.flight.requests.per.connection", "5");
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    // How many records of ours are missing, double, out of order or should not be seen.
    static int wrong() {
        var settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("isolation.level", "read_committed");
        Map<String, Map<String, List<String>>> seen = new HashMap<>();
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            var places = new ArrayList<TopicPartition>();
            for (int index = 0; index < partitions; index++) {
                places.add(new TopicPartition(topic, index));
            }
            consumer.assign(places);
            consumer.seekToBeginning(places);
            // The markers of the last transaction may still be on their way.
            long deadline = System.nanoTime() + 20_000_000_000L;
            int wanted = committed.values().stream().mapToInt(List::size).sum();
            int count = 0;
            long quiet = 0;
            while (System.nanoTime() < deadline && (count < wanted || quiet < 2)) {
                var polled = consumer.poll(Duration.ofMillis(200));
                quiet = polled.isEmpty() ? quiet + 1 : 0;
                for (var record : polled) {
                    String[] parts = new String(record.value(), StandardCharsets.UTF_8).split("/", 2);
                    if (parts[0].startsWith(prefix)) {
                        count++;
                        seen.computeIfAbsent(parts[0], name -> new HashMap<>())
                            .computeIfAbsent(String.valueOf(record.partition()), name -> new ArrayList<>())
                            .add(parts[0] + "/" + parts[1]);
                    }
                }
            }
        }
        int wrong = 0;
        for (var transaction : committed.entrySet()) {
            Map<String, List<String>> expected = new HashMap<>();
            for (String value : transaction.getValue()) {
                expected.computeIfAbsent(value.split("/")[1], name -> new ArrayList<>()).add(value);
            }
            var found = seen.remove(transaction.getKey());
            if (!expected.equals(found)) {
                wrong++;
                System.err.println(transaction.getKey() + ": expected " + expected + ", found " + found);
            }
        }
        for (String name : seen.keySet()) {
            wrong++;
            System.err.println(name + " was not committed, and is seen");
        }
        return wrong;
    }
}
