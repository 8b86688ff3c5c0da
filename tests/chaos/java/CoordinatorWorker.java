// One process of an exactly-once application with the Java client and its default settings; run as a single
// source file:
//
//     java -cp kafka-clients.jar:... CoordinatorWorker.java BOOTSTRAP TRANSACTIONAL_ID GROUP INPUT OUTPUT [NAME=VALUE ...]
//
// It does and says what tests/chaos/coordinator_worker.py does and says.

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApplicationRecoverableException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class CoordinatorWorker {
    static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static double now() {
        return System.nanoTime() / 1e9;
    }

    public static void main(String[] arguments) {
        Properties shared = new Properties();
        shared.put("bootstrap.servers", arguments[0]);
        Properties consuming = new Properties();
        for (int index = 5; index < arguments.length; index++) {
            String[] pair = arguments[index].split("=", 2);
            (pair[0].startsWith("group.") ? consuming : shared).put(pair[0], pair[1]);
        }
        consuming.putAll(shared);
        consuming.put("group.id", arguments[2]);
        consuming.put("auto.offset.reset", "earliest");
        consuming.put("enable.auto.commit", "false");
        consuming.put("isolation.level", "read_committed");
        consuming.put("max.poll.records", "100");
        Properties producing = new Properties();
        producing.putAll(shared);
        producing.put("transactional.id", arguments[1]);
        try (var consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer());
                var producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(arguments[3]));
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (!records.isEmpty()) {
                    transaction(consumer, producer, records, arguments[4]);
                }
            }
        } catch (Exception fault) {
            say("ended " + fault);
            System.exit(3);
        }
    }

    static void transaction(
            KafkaConsumer<String, String> consumer,
            KafkaProducer<String, String> producer,
            ConsumerRecords<String, String> records,
            String output) {
        double begun = now();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        try {
            producer.beginTransaction();
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(output, record.partition(), null, record.value()));
                offsets.put(
                        new TopicPartition(record.topic(), record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            commit(producer);
            say("committed " + begun + " " + records.count());
        } catch (ApplicationRecoverableException | OutOfOrderSequenceException | AuthorizationException fault) {
            // Fenced, or not usable any more.
            throw fault;
        } catch (KafkaException fault) {
            producer.abortTransaction();
            say("aborted " + begun + " " + fault.getClass().getSimpleName() + ": " + fault.getMessage());
            for (TopicPartition place : records.partitions()) {
                if (consumer.assignment().contains(place)) {
                    consumer.seek(place, records.records(place).get(0).offset());
                }
            }
        }
    }

    /** A commit that timed out may only be tried again: it may have happened. */
    static void commit(KafkaProducer<String, String> producer) {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException late) {
                say("late " + late.getMessage());
            }
        }
    }
}
