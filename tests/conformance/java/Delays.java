// A Java client with default settings before a delay topic; run as a single source file:
//
//     java -cp kafka-clients.jar:... Delays.java send BOOTSTRAP TOPIC [NAME=VALUE...]
//     java -cp kafka-clients.jar:... Delays.java read BOOTSTRAP TOPIC COUNT [NAME=VALUE...]
//
// `send` prints the time, and reads lines "key value due": each is sent with the header tidelog-deliver-at, so many
// milliseconds after that time, or whatever else is there as it is, or without where due is "-". A value "-" is a
// tombstone, and a line "flush" ends a batch. It prints the error of each that is refused. `read` prints what a read_committed consumer sees of partition 0,
// "value milliseconds", and ends a while after so many records.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Delays {
    static final long PATIENCE_MS = 90_000;
    static final long QUIET_MS = 2_000;

    public static void main(String[] arguments) throws Exception {
        boolean sends = arguments[0].equals("send");
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[1]);
        for (int each = sends ? 3 : 4; each < arguments.length; each++) {
            String[] pair = arguments[each].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        if (sends) {
            send(properties, arguments[2]);
        } else {
            read(properties, arguments[2], Integer.parseInt(arguments[3]));
        }
    }

    static void send(Properties properties, String topic) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<Future<?>> sent = new ArrayList<>();
        try (var producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            producer.partitionsFor(topic);
            long now = System.currentTimeMillis();
            System.out.println(now);
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (line.equals("flush")) {
                    producer.flush();
                    continue;
                }
                String[] words = line.split(" ");
                var record = new ProducerRecord<>(topic, words[0], words[1].equals("-") ? null : words[1]);
                if (!words[2].equals("-")) {
                    String due = words[2].matches("[0-9]+") ? "" + (now + Long.parseLong(words[2])) : words[2];
                    record.headers().add("tidelog-deliver-at", due.getBytes(StandardCharsets.UTF_8));
                }
                sent.add(producer.send(record));
            }
            for (Future<?> each : sent) {
                try {
                    each.get();
                } catch (ExecutionException refused) {
                    System.out.println(refused.getCause().getClass().getSimpleName());
                }
            }
        }
    }

    static void read(Properties properties, String topic, int count) {
        properties.put("isolation.level", "read_committed");
        properties.put("auto.offset.reset", "earliest");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (var consumer = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long until = System.currentTimeMillis() + PATIENCE_MS;
            int found = 0;
            while (System.currentTimeMillis() < until) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println(record.value() + " " + System.currentTimeMillis());
                    if (++found == count) {
                        until = Math.min(until, System.currentTimeMillis() + QUIET_MS);
                    }
                }
            }
        }
    }
}
