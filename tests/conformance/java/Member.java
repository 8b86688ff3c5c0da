// One member of a group as a process of its own, saying what it does in the lines of tests/conformance/group_member.py;
// run as a single source file:
//
//     java -cp kafka-clients.jar:... Member.java PROTOCOL BOOTSTRAP GROUP TOPIC STRATEGY INSTANCE_OR_-

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Member {
    static final Duration POLL = Duration.ofMillis(100);
    static final Map<String, String> ASSIGNORS = Map.of(
            "range", "org.apache.kafka.clients.consumer.RangeAssignor",
            "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    static int uncommitted;

    public static void main(String[] arguments) {
        AtomicBoolean stopped = stopWhenTold();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings(arguments))) {
            consumer.subscribe(List.of(arguments[3]), listener(consumer));
            while (!stopped.get()) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(POLL)) {
                    say("V", each.partition() + " " + new String(each.value(), StandardCharsets.UTF_8));
                    uncommitted++;
                }
                commit(consumer);
            }
            say("R", "all");
        }
    }

    static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put("group.protocol", arguments[0]);
        settings.put("bootstrap.servers", arguments[1]);
        settings.put("group.id", arguments[2]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("max.poll.records", "20");
        settings.put("metadata.max.age.ms", "500");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        if (arguments[0].equals("consumer")) {
            settings.put("group.remote.assignor", arguments[4]);
        } else {
            settings.put("partition.assignment.strategy", ASSIGNORS.get(arguments[4]));
            settings.put("session.timeout.ms", "6000");
            settings.put("heartbeat.interval.ms", "300");
        }
        if (!arguments[5].equals("-")) {
            settings.put("group.instance.id", arguments[5]);
        }
        return settings;
    }

    static ConsumerRebalanceListener listener(KafkaConsumer<byte[], byte[]> consumer) {
        return new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                commit(consumer);
                say("R", listed(partitions));
            }

            @Override
            public void onPartitionsLost(Collection<TopicPartition> partitions) {
                uncommitted = 0;
                say("L", listed(partitions));
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                say("A", listed(partitions));
            }
        };
    }

    static void commit(KafkaConsumer<byte[], byte[]> consumer) {
        try {
            if (uncommitted > 0) {
                consumer.commitSync();
            }
        } catch (KafkaException refused) {
            say("C", refused.getClass().getSimpleName()); // the records will be read again
        }
        uncommitted = 0;
    }

    static String listed(Collection<TopicPartition> partitions) {
        String listed = partitions.stream().map(TopicPartition::partition).sorted().map(String::valueOf)
                .collect(Collectors.joining(","));
        return listed.isEmpty() ? "-" : listed;
    }

    static synchronized void say(String kind, String fields) {
        // nanoTime is the machine's monotonic clock, which the test reads as well.
        System.out.println(String.format(Locale.ROOT, "%s %.6f %s", kind, System.nanoTime() / 1e9, fields));
    }

    static AtomicBoolean stopWhenTold() {
        AtomicBoolean stopped = new AtomicBoolean();
        Thread waiting = new Thread(() -> {
            try {
                System.in.read();
            } catch (IOException closed) {
                // as good as being told
            }
            stopped.set(true);
        });
        waiting.setDaemon(true);
        waiting.start();
        return stopped;
    }
}
