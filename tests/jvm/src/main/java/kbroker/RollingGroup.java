package kbroker;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Runs a group whose classic members copy records in transactions. It replaces them one by one by members of the
 * consumer protocol, and these by classic members again. {@code RollingGroup BOOTSTRAP} prints "exactly once" if each
 * record was copied once, and otherwise what it observed.
 */
public final class RollingGroup {
    private static final int PARTITIONS = 6;
    private static final int MEMBERS = 3;
    private static final int RECORDS_EACH = 20;
    private static final long LIMIT_MS = 120_000;
    private static final Duration POLL = Duration.ofMillis(100);

    private final String bootstrap;
    private final String run = UUID.randomUUID().toString().substring(0, 8);
    private final String input = "rolling-input-" + run;
    private final String output = "rolling-output-" + run;
    private final AtomicInteger produced = new AtomicInteger();
    private volatile boolean isRolled;

    private RollingGroup(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println(new RollingGroup(arguments[0]).roll());
    }

    private String roll() throws Exception {
        try (var admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(input, PARTITIONS, (short) 1), new NewTopic(output, 1, (short) 1)))
                .all().get();
        }
        Thread source = new Thread(this::produceUntilRolled);
        source.start();
        List<Member> members = new ArrayList<>();
        for (int i = 0; i < MEMBERS; i++) {
            members.add(new Member("classic", members.size()));
        }
        for (String protocol : List.of("consumer", "classic")) {
            for (int i = 0; i < MEMBERS; i++) {
                for (Member member : members) {
                    member.awaitCopies();
                }
                members.remove(0).end();
                members.add(new Member(protocol, i));
            }
        }
        for (Member member : members) {
            member.awaitCopies();
        }
        isRolled = true;
        source.join();
        List<String> copies = copies();
        for (Member member : members) {
            member.end();
        }
        Set<String> expected = new HashSet<>();
        IntStream.range(0, produced.get()).forEach(number -> expected.add("v" + number));
        Set<String> found = new HashSet<>(copies);
        if (copies.size() == expected.size() && found.equals(expected)) {
            return "exactly once";
        }
        return expected.size() + " records, " + copies.size() + " copies of " + found.size() + " values";
    }

    private void produceUntilRolled() {
        try (var producer = producer(Map.of("linger.ms", 5))) {
            while (!isRolled) {
                int number = produced.getAndIncrement();
                producer.send(new ProducerRecord<>(input, number % PARTITIONS, null, "v" + number));
                if (number % 10 == 9) {
                    producer.flush();
                }
            }
        }
    }

    /** Reads the committed copies until there are as many as records, or until the time limit. */
    private List<String> copies() {
        List<String> found = new ArrayList<>();
        try (var consumer = consumer("classic", "reader-" + run, Map.of("isolation.level", "read_committed"))) {
            TopicPartition partition = new TopicPartition(output, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long deadline = System.nanoTime() + LIMIT_MS * 1_000_000;
            int idle = 0;
            // A few more polls show surplus copies.
            while (System.nanoTime() < deadline && (found.size() < produced.get() || idle < 20)) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                records.forEach(record -> found.add(record.value()));
                idle = records.isEmpty() ? idle + 1 : 0;
            }
        }
        return found;
    }

    private KafkaProducer<String, String> producer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("bootstrap.servers", bootstrap);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    private KafkaConsumer<String, String> consumer(String protocol, String group, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.putAll(Map.of("bootstrap.servers", bootstrap, "group.id", group, "auto.offset.reset", "earliest",
            "enable.auto.commit", "false", "group.protocol", protocol, "max.poll.records", 50));
        if (protocol.equals("classic")) {
            all.putAll(Map.of("session.timeout.ms", 10_000, "heartbeat.interval.ms", 300));
        }
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    /** A member of the group, which runs in a separate thread. */
    private final class Member {
        private final String protocol;
        private final String name;
        private final Thread thread = new Thread(this::run);
        private volatile boolean ends;
        private volatile int copied;
        private volatile Throwable problem;

        Member(String protocol, int number) {
            this.protocol = protocol;
            this.name = protocol + "-" + number + "-" + UUID.randomUUID();
            thread.start();
        }

        void end() throws InterruptedException {
            ends = true;
            thread.join(LIMIT_MS);
        }

        /** Waits until the member has copied some more records. */
        void awaitCopies() throws InterruptedException {
            int wanted = copied + RECORDS_EACH;
            long deadline = System.nanoTime() + LIMIT_MS * 1_000_000;
            while (copied < wanted) {
                if (problem != null || System.nanoTime() > deadline) {
                    throw new AssertionError(name + " has copied " + copied + " records, expected " + wanted, problem);
                }
                thread.join(20);
            }
        }

        private void run() {
            try {
                while (!ends) {
                    copyUntilError();
                }
            } catch (Throwable unexpected) {
                problem = unexpected;
            }
        }

        /** Copies with one producer and one consumer, until one of them cannot continue. */
        private void copyUntilError() {
            try (var producer = producer(Map.of("transactional.id", name, "transaction.timeout.ms", 15_000));
                 var consumer = consumer(protocol, "rolling-" + run, Map.of())) {
                producer.initTransactions();
                consumer.subscribe(List.of(input));
                while (!ends) {
                    ConsumerRecords<String, String> records = consumer.poll(POLL);
                    if (!records.isEmpty()) {
                        copy(producer, consumer, records);
                    }
                }
            } catch (KafkaException error) {
                // A rebalance revoked partitions during a transaction. The next initTransactions aborts it.
            }
        }

        private void copy(KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer,
                          ConsumerRecords<String, String> records) {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            producer.beginTransaction();
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(output, 0, null, record.value()));
                offsets.put(new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            producer.commitTransaction();
            copied += records.count();
        }
    }
}
