// A member of a share group with the Java client, as a process to be killed; run as a single source file:
//
//     java -cp kafka-clients.jar:... ShareMember.java BOOTSTRAP GROUP TOPIC accept|reject
//
// It says what tests/chaos/share_member.py says, with the same clock.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ShareMember {
    static final int REJECT_EVERY = 10;
    static final long WORK_MS = 200;

    public static void main(String[] arguments) throws InterruptedException {
        boolean rejects = arguments[3].equals("reject");
        AtomicBoolean going = new AtomicBoolean(true);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            going.set(false);
            try {
                main.join(10_000);
            } catch (InterruptedException fault) {
                Thread.currentThread().interrupt();
            }
        }));
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", "100");
        try (KafkaShareConsumer<String, String> consumer =
                new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[2]));
            while (going.get()) {
                serve(consumer, rejects);
            }
        }
    }

    static void serve(KafkaShareConsumer<String, String> consumer, boolean rejects)
            throws InterruptedException {
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
        if (records.isEmpty()) {
            return;
        }
        List<String> all = new ArrayList<>();
        for (ConsumerRecord<String, String> each : records) {
            all.add(each.value());
        }
        say("got", "", all);
        Thread.sleep(WORK_MS);
        for (ConsumerRecord<String, String> each : records) {
            boolean rejecting = rejects && Integer.parseInt(each.value()) % REJECT_EVERY == 3;
            consumer.acknowledge(each, rejecting ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT);
        }
        Map<TopicIdPartition, Optional<KafkaException>> results = consumer.commitSync(Duration.ofSeconds(20));
        for (TopicPartition where : records.partitions()) {
            List<String> those = new ArrayList<>();
            for (ConsumerRecord<String, String> each : records.records(where)) {
                those.add(each.value());
            }
            Optional<KafkaException> fault = null;
            for (Map.Entry<TopicIdPartition, Optional<KafkaException>> entry : results.entrySet()) {
                if (entry.getKey().topicPartition().equals(where)) {
                    fault = entry.getValue();
                }
            }
            if (fault != null && fault.isEmpty()) {
                say("told", "", those);
            } else {
                say("refused", fault == null ? "unanswered " : fault.get().getClass().getSimpleName() + " ", those);
            }
        }
    }

    /** One line, at once. The clock of System.nanoTime is CLOCK_MONOTONIC, as that of Python. */
    static void say(String word, String why, List<String> numbers) {
        String line = word + " " + System.nanoTime() / 1e9 + " " + why + String.join(",", numbers) + "\n";
        byte[] data = line.getBytes(StandardCharsets.UTF_8);
        System.out.write(data, 0, data.length);
        System.out.flush();
    }
}
