// The Java client through a failover, with default settings; run as a single source file:
//
//     java -cp kafka-clients.jar:... Failover.java BOOTSTRAP TOPIC GROUP SECONDS
//
// It says what tests/chaos/failover_client.py says, which describes the lines.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Failover {
    static final long PAUSE_MS = 20;
    static final long DRAIN_MS = 60_000;
    static final int PARTITIONS = 3;
    static final Set<String> expected = ConcurrentHashMap.newKeySet();
    static final Set<String> read = ConcurrentHashMap.newKeySet();
    static final AtomicBoolean sending = new AtomicBoolean(true);

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    public static void main(String[] arguments) throws Exception {
        Thread reader = new Thread(() -> read(arguments[0], arguments[1], arguments[2]));
        reader.start();
        send(arguments[0], arguments[1], Double.parseDouble(arguments[3]));
        sending.set(false);
        reader.join(DRAIN_MS + 10_000);
        say("done");
        System.exit(0);
    }

    static void send(String bootstrap, String topic, double seconds) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        long end = System.nanoTime() + (long) (seconds * 1e9);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; System.nanoTime() < end; number++) {
                int sent = number;
                String value = "client/" + number;
                producer.send(new ProducerRecord<>(topic, number % PARTITIONS, null, value), (metadata, fault) -> {
                    if (fault == null) {
                        expected.add(value);
                        say("sent " + sent + " " + metadata.partition() + " " + metadata.offset());
                    } else {
                        say("failed " + sent + " " + sent % PARTITIONS + " " + fault);
                    }
                });
                Thread.sleep(PAUSE_MS);
            }
            producer.flush();
        }
    }

    static void read(String bootstrap, String topic, String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        long end = Long.MAX_VALUE;
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                public void onPartitionsRevoked(Collection<TopicPartition> places) {}

                public void onPartitionsAssigned(Collection<TopicPartition> places) {
                    say("assigned");
                }
            });
            while (true) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    say("read " + record.partition() + " " + record.offset() + " " + record.value());
                    read.add(record.value());
                }
                if (!sending.get()) {
                    end = Math.min(end, System.nanoTime() + DRAIN_MS * 1_000_000);
                    if (read.containsAll(expected) || System.nanoTime() > end) {
                        return;
                    }
                }
            }
        }
    }
}
