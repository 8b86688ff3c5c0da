// Loads of the Java client with its default settings, for bench/beside_kafka. Prints name=value lines.
//
//   produce  <topic> <size> <codec> <warm-up s> <seconds>         as fast as it goes, no keys
//   keyed    <topic> <size> <keys> <warm-up s> <seconds>          the same with keys out of so many
//   consume  <topic> <partitions> <group or -> <records>          from the beginning; a group of one, or assigned
//   share    <topic> <members> <records>                          from the beginning, by a share group of so many members
//   latency  <topic> <size> <per second> <warm-up s> <seconds>    from send() to poll(), at a fixed rate
//   commits  <topic> <groups> <offsets> <warm-up s> <seconds>     commitSync of so many groups in turn
//
// Settings of the connection (security.protocol and others) come as -Dclient.NAME=VALUE.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class KafkaLoad {
    static final int PAYLOADS = 512;
    static final long NS = 1_000_000_000L;
    static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        String topic = arguments[2];
        switch (arguments[1]) {
            case "produce" -> produce(topic, number(arguments[3]), arguments[4], 0, number(arguments[5]), number(arguments[6]));
            case "keyed" -> produce(topic, number(arguments[3]), "none", number(arguments[4]), number(arguments[5]), number(arguments[6]));
            case "consume" -> consume(topic, number(arguments[3]), arguments[4], Long.parseLong(arguments[5]));
            case "share" -> share(topic, number(arguments[3]), Long.parseLong(arguments[4]));
            case "latency" -> latency(topic, number(arguments[3]), number(arguments[4]), number(arguments[5]), number(arguments[6]));
            case "commits" -> commits(topic, number(arguments[3]), number(arguments[4]), number(arguments[5]), number(arguments[6]));
            default -> throw new IllegalArgumentException(arguments[1]);
        }
        System.exit(0);
    }

    static int number(String text) {
        return Integer.parseInt(text);
    }

    static Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        System.getProperties().forEach((name, value) -> {
            if (name.toString().startsWith("client.")) {
                settings.put(name.toString().substring("client.".length()), value);
            }
        });
        return settings;
    }

    static KafkaProducer<byte[], byte[]> producer(String codec) {
        Properties settings = settings();
        settings.put("compression.type", codec);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group) {
        Properties settings = settings();
        settings.put("auto.offset.reset", "earliest");
        if (group != null) {
            settings.put("group.id", group);
        }
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    // Random letters: what a codec makes of them is much like what it makes of JSON with few repeats.
    static byte[][] payloads(int size) {
        Random random = new Random(7);
        byte[][] payloads = new byte[PAYLOADS][size];
        for (byte[] payload : payloads) {
            for (int i = 0; i < size; i++) {
                payload[i] = (byte) ('A' + random.nextInt(26));
            }
        }
        return payloads;
    }

    static double total(KafkaProducer<?, ?> producer, String name) {
        double total = 0;
        for (Map.Entry<MetricName, ? extends Metric> each : producer.metrics().entrySet()) {
            if (each.getKey().name().equals(name) && each.getKey().group().equals("producer-metrics")) {
                total += (Double) each.getValue().metricValue();
            }
        }
        return total;
    }

    static void produce(String topic, int size, String codec, int keys, int warmUp, int seconds) {
        byte[][] payloads = payloads(size);
        AtomicLong acknowledged = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        try (var producer = producer(codec)) {
            long begin = System.nanoTime() + warmUp * NS;
            long end = begin + seconds * NS;
            long sent = 0;
            long atBegin = -1;
            double requestsAtBegin = 0;
            long began = 0;
            while (true) {
                if ((sent & 255) == 0) {
                    long now = System.nanoTime();
                    if (atBegin < 0 && now >= begin) {
                        atBegin = acknowledged.get();
                        requestsAtBegin = total(producer, "request-total");
                        began = now;
                        System.out.println("began=1");
                        System.out.flush();
                    }
                    if (now >= end) {
                        break;
                    }
                }
                byte[] key = keys == 0 ? null : Integer.toString((int) ((sent * 2654435761L >>> 7) % keys)).getBytes();
                producer.send(new ProducerRecord<>(topic, key, payloads[(int) (sent % PAYLOADS)]), (data, fault) -> {
                    if (fault == null) {
                        acknowledged.incrementAndGet();
                    } else {
                        failed.incrementAndGet();
                    }
                });
                sent++;
            }
            double took = (System.nanoTime() - began) / 1e9;
            long records = acknowledged.get() - atBegin;
            double requests = total(producer, "request-total") - requestsAtBegin;
            System.out.println("ended=1");
            System.out.flush();
            System.out.printf("per_second=%.1f%nrecords=%d%nbytes=%d%nrequests=%.0f%n", records / took, records, records * size, requests);
        }
        System.out.println("failed=" + failed.get());
    }

    static void consume(String topic, int partitions, String group, long wanted) {
        try (var consumer = consumer(group.equals("-") ? null : group)) {
            if (group.equals("-")) {
                List<TopicPartition> all = new ArrayList<>();
                for (int index = 0; index < partitions; index++) {
                    all.add(new TopicPartition(topic, index));
                }
                consumer.assign(all);
                consumer.seekToBeginning(all);
            } else {
                consumer.subscribe(List.of(topic));
            }
            long records = 0;
            long bytes = 0;
            long began = 0;
            long last = System.nanoTime();
            while (records < wanted && System.nanoTime() - last < 20 * NS) {
                var polled = consumer.poll(Duration.ofMillis(200));
                if (polled.isEmpty()) {
                    continue;
                }
                last = System.nanoTime();
                if (began == 0) {
                    // The first answers come while the code is still cold: they do not count.
                    began = last;
                    System.out.println("began=1");
                    System.out.flush();
                    wanted -= polled.count();
                    continue;
                }
                records += polled.count();
                for (ConsumerRecord<byte[], byte[]> record : polled) {
                    bytes += record.value().length;
                }
            }
            double took = (last - began) / 1e9;
            System.out.println("ended=1");
            System.out.flush();
            System.out.printf("per_second=%.1f%nrecords=%d%nbytes=%d%nrequests=0%nfailed=%d%n", records / took, records, bytes, Math.max(0, wanted - records));
        }
    }

    // Records acknowledged by the next poll. The first fifth warms both sides up and does not count.
    static void share(String topic, int members, long wanted) throws Exception {
        String group = "share-" + topic;
        try (var admin = Admin.create(settings())) {
            var entry = new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), List.of(entry))).all().get();
        }
        long warmUp = wanted / 5;
        AtomicLong records = new AtomicLong();
        AtomicLong bytes = new AtomicLong();
        AtomicLong again = new AtomicLong();
        AtomicLong began = new AtomicLong();
        AtomicLong ended = new AtomicLong();
        AtomicLong last = new AtomicLong(System.nanoTime());
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < members; number++) {
            Thread thread = new Thread(() -> {
                Properties settings = settings();
                settings.put("group.id", group);
                try (var consumer = new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                    consumer.subscribe(List.of(topic));
                    while (ended.get() == 0 && System.nanoTime() - last.get() < 20 * NS) {
                        long fresh = 0;
                        long size = 0;
                        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                            if (record.deliveryCount().orElse((short) 1) > 1) {
                                // While members leave, others get what those had not acknowledged.
                                again.addAndGet(ended.get() == 0 ? 1 : 0);
                                continue;
                            }
                            fresh++;
                            size += record.value().length;
                        }
                        if (fresh == 0) {
                            continue;
                        }
                        last.set(System.nanoTime());
                        bytes.addAndGet(size);
                        long before = records.getAndAdd(fresh);
                        if (before < warmUp && before + fresh >= warmUp) {
                            bytes.set(0);
                            began.set(System.nanoTime());
                            System.out.println("began=1");
                            System.out.flush();
                        }
                        if (before < wanted && before + fresh >= wanted) {
                            ended.set(System.nanoTime());
                        }
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        while (ended.get() == 0 && threads.stream().anyMatch(Thread::isAlive)) {
            Thread.sleep(5);
        }
        System.out.println("ended=1");
        System.out.flush();
        for (Thread thread : threads) {
            thread.join();
        }
        double took = (ended.get() - began.get()) / 1e9;
        long counted = records.get() - warmUp;
        System.out.printf("per_second=%.1f%nrecords=%d%nbytes=%d%nrequests=0%nfailed=%d%n", counted / took, counted, bytes.get(), Math.max(0, wanted - records.get()) + again.get());
    }

    static void latency(String topic, int size, int perSecond, int warmUp, int seconds) throws Exception {
        int expected = perSecond * (warmUp + seconds);
        long[] sentAt = new long[expected];
        double[] tookMs = new double[expected];
        Arrays.fill(tookMs, -1);
        AtomicLong failed = new AtomicLong();
        AtomicLong received = new AtomicLong();
        try (var producer = producer("none"); var consumer = consumer(null)) {
            List<TopicPartition> all = new ArrayList<>();
            producer.partitionsFor(topic).forEach(each -> all.add(new TopicPartition(topic, each.partition())));
            consumer.assign(all);
            consumer.seekToEnd(all);
            all.forEach(consumer::position);
            Thread reading = new Thread(() -> {
                while (received.get() < expected && !Thread.interrupted()) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                        long now = System.nanoTime();
                        int number = Integer.parseInt(new String(record.key()));
                        tookMs[number] = (now - sentAt[number]) / 1e6;
                        received.incrementAndGet();
                    }
                }
            });
            reading.start();
            byte[][] payloads = payloads(size);
            long began = System.nanoTime();
            for (int number = 0; number < expected; number++) {
                long due = began + (long) (number * (double) NS / perSecond);
                for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                if (number == perSecond * warmUp) {
                    System.out.println("began=1");
                    System.out.flush();
                }
                sentAt[number] = System.nanoTime();
                producer.send(new ProducerRecord<>(topic, Integer.toString(number).getBytes(), payloads[number % PAYLOADS]), (data, fault) -> {
                    if (fault != null) {
                        failed.incrementAndGet();
                    }
                });
            }
            System.out.println("ended=1");
            System.out.flush();
            producer.flush();
            reading.join(15_000);
            if (reading.isAlive()) {
                consumer.wakeup();
                reading.join(5_000);
            }
        }
        double[] counted = Arrays.stream(tookMs, perSecond * warmUp, expected).filter(each -> each >= 0).sorted().toArray();
        long missing = (long) perSecond * seconds - counted.length;
        System.out.printf("per_second=%d%np50_ms=%.2f%np99_ms=%.2f%np999_ms=%.2f%n", perSecond, at(counted, 0.5), at(counted, 0.99), at(counted, 0.999));
        System.out.printf("records=%d%nbytes=%d%nrequests=0%nfailed=%d%n", counted.length, (long) counted.length * size, failed.get() + missing);
    }

    static double at(double[] sorted, double share) {
        return sorted.length == 0 ? Double.NaN : sorted[Math.min(sorted.length - 1, (int) (sorted.length * share))];
    }

    static void commits(String topic, int groups, int offsets, int warmUp, int seconds) {
        List<KafkaConsumer<byte[], byte[]>> consumers = new ArrayList<>();
        List<TopicPartition> all = new ArrayList<>();
        for (int index = 0; index < offsets; index++) {
            all.add(new TopicPartition(topic, index));
        }
        String run = Long.toHexString(System.nanoTime());
        for (int number = 0; number < groups; number++) {
            var consumer = consumer("commits-" + run + "-" + number);
            consumer.assign(all);
            consumers.add(consumer);
        }
        long begin = System.nanoTime() + warmUp * NS;
        long end = begin + seconds * NS;
        long began = 0;
        long commits = 0;
        long offset = 0;
        List<Double> tookMs = new ArrayList<>();
        while (true) {
            long now = System.nanoTime();
            if (now >= end) {
                break;
            }
            if (began == 0 && now >= begin) {
                began = now;
                commits = 0;
                tookMs.clear();
                System.out.println("began=1");
                System.out.flush();
            }
            Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
            for (TopicPartition each : all) {
                wanted.put(each, new OffsetAndMetadata(offset));
            }
            offset++;
            consumers.get((int) (offset % groups)).commitSync(wanted);
            tookMs.add((System.nanoTime() - now) / 1e6);
            commits++;
        }
        double took = (System.nanoTime() - began) / 1e9;
        System.out.println("ended=1");
        System.out.flush();
        double[] sorted = tookMs.stream().mapToDouble(Double::doubleValue).sorted().toArray();
        System.out.printf("per_second=%.1f%nrecords=%d%nbytes=0%nrequests=%d%nfailed=0%np50_ms=%.3f%np99_ms=%.3f%n", commits / took, commits, commits, at(sorted, 0.5), at(sorted, 0.99));
        consumers.forEach(consumer -> consumer.close(Duration.ofSeconds(1)));
    }
}
