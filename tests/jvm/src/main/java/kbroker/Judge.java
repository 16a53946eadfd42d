package kbroker;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Tests a live broker with Kafka's own clients. {@code Judge BOOTSTRAP SCENARIO...} runs the scenarios in order and
 * prints one JSON line for each: its name, whether it passed, and if not, what the clients observed.
 */
public final class Judge {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long LIMIT_MS = 60_000;
    private static final String COMMITTED = "read_committed";
    private static final String UNCOMMITTED = "read_uncommitted";

    private interface Scenario {
        void run() throws Exception;
    }

    private final String bootstrap;
    private String groupProtocol = "classic";

    private Judge(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) {
        Judge judge = new Judge(arguments[0]);
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        scenarios.put("plain_produce", judge::plainProduce);
        scenarios.put("idempotent_produce", judge::idempotentProduce);
        scenarios.put("group_rebalance", judge::groupRebalance);
        scenarios.put("commit_over_partitions", judge::commitOverPartitions);
        scenarios.put("abort_over_partitions", judge::abortOverPartitions);
        scenarios.put("empty_transactions", judge::emptyTransactions);
        scenarios.put("send_offsets", judge::sendOffsets);
        scenarios.put("fencing", judge::fencing);
        scenarios.put("timeout_abort", judge::timeoutAbort);
        scenarios.put("restart_in_transaction", judge::restartInTransaction);
        for (Map.Entry<String, Scenario> scenario : Map.<String, Scenario>of(
                "group_rebalance", judge::groupRebalance, "send_offsets", judge::sendOffsets,
                "pattern", judge::pattern, "static_member", judge::staticMember,
                "more_partitions", judge::morePartitions, "restart_in_group", judge::restartInGroup).entrySet()) {
            scenarios.put("consumer_protocol_" + scenario.getKey(), () -> {
                judge.groupProtocol = "consumer";
                scenario.getValue().run();
            });
        }
        for (String name : List.of(arguments).subList(1, arguments.length)) {
            String error = "";
            try {
                scenarios.get(name).run();
            } catch (Throwable seen) {
                StackTraceElement[] trace = seen.getStackTrace();
                error = seen + (trace.length > 0 ? " at " + trace[trace.length - 1] : "");
                for (StackTraceElement frame : trace) {
                    if (frame.getClassName().startsWith(Judge.class.getName())) {
                        error = seen + " at " + frame;
                        break;
                    }
                }
            }
            System.out.println("{\"scenario\": " + quote(name) + ", \"error\": " + quote(error) + "}");
        }
    }

    private void plainProduce() throws Exception {
        String topic = newTopic("plain", 1);
        try (var producer = producer(Map.of("enable.idempotence", "false", "acks", "1"))) {
            for (int i = 0; i < 100; i++) {
                var record = new ProducerRecord<>(topic, 0, "k" + i, "v" + i);
                record.headers().add("h", new byte[] {(byte) i});
                RecordMetadata metadata = producer.send(record).get();
                expect(i, (int) metadata.offset());
            }
        }
        List<ConsumerRecord<String, String>> records = read(topic, 1, UNCOMMITTED, 100);
        for (int i = 0; i < 100; i++) {
            expect("v" + i, records.get(i).value());
            expect(i, (int) records.get(i).headers().lastHeader("h").value()[0]);
        }
    }

    private void idempotentProduce() throws Exception {
        String topic = newTopic("idempotent", 3);
        try (var producer = producer(Map.of("compression.type", "lz4"))) {
            for (int i = 0; i < 3000; i++) {
                producer.send(new ProducerRecord<>(topic, i % 3, null, "v" + i));
            }
            producer.flush();
        }
        expect(values(0, 3000), valuesOf(read(topic, 3, UNCOMMITTED, 3000)));
    }

    private void groupRebalance() throws Exception {
        String topic = newTopic("group", 4);
        String group = "group-" + UUID.randomUUID();
        produce(topic, 4, 0, 40);
        Set<String> seen = new TreeSet<>();
        try (var first = consumer(UNCOMMITTED, group)) {
            first.subscribe(List.of(topic));
            pollUntil(() -> first.assignment().size() == 4 && seen.size() == 40, first, seen);
            first.commitSync();
            try (var second = consumer(UNCOMMITTED, group)) {
                second.subscribe(List.of(topic));
                until(() -> {
                    collect(first, seen);
                    collect(second, seen);
                    return first.assignment().size() == 2 && second.assignment().size() == 2;
                });
                produce(topic, 4, 40, 80);
                until(() -> {
                    collect(first, seen);
                    collect(second, seen);
                    return seen.size() == 80;
                });
                first.commitSync();
                second.commitSync();
            }
            pollUntil(() -> first.assignment().size() == 4, first, seen);
        }
        expect(values(0, 80), seen);
        try (var third = consumer(UNCOMMITTED, group)) {
            long committed = third.committed(new HashSet<>(partitions(topic, 4))).values().stream()
                .mapToLong(OffsetAndMetadata::offset).sum();
            expect(80L, committed);
        }
    }

    private void commitOverPartitions() throws Exception {
        String topic = newTopic("commit", 3);
        try (var producer = transactional("commit", 60_000)) {
            for (int round = 0; round < 5; round++) {
                producer.beginTransaction();
                for (int i = 0; i < 6; i++) {
                    producer.send(new ProducerRecord<>(topic, i % 3, null, "v" + (round * 6 + i)));
                }
                producer.commitTransaction();
            }
        }
        expect(values(0, 30), valuesOf(read(topic, 3, COMMITTED, 30)));
    }

    private void abortOverPartitions() throws Exception {
        String topic = newTopic("abort", 2);
        try (var producer = transactional("abort", 60_000)) {
            producer.beginTransaction();
            send(producer, topic, 2, 0, 10);
            producer.flush();
            expect(values(0, 10), valuesOf(read(topic, 2, UNCOMMITTED, 10)));
            expect(0, read(topic, 2, COMMITTED, 0).size());
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, topic, 2, 10, 20);
            producer.commitTransaction();
        }
        expect(values(10, 20), valuesOf(read(topic, 2, COMMITTED, 10)));
        expect(values(0, 20), valuesOf(read(topic, 2, UNCOMMITTED, 20)));
    }

    private void emptyTransactions() throws Exception {
        String topic = newTopic("empty", 1);
        try (var producer = transactional("empty", 60_000)) {
            for (int i = 0; i < 3; i++) {
                producer.beginTransaction();
                producer.abortTransaction();
                producer.beginTransaction();
                producer.commitTransaction();
            }
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "v0"));
            producer.commitTransaction();
        }
        expect(values(0, 1), valuesOf(read(topic, 1, COMMITTED, 1)));
    }

    private void sendOffsets() throws Exception {
        String source = newTopic("source", 1);
        String target = newTopic("target", 1);
        String group = "offsets-" + UUID.randomUUID();
        TopicPartition partition = new TopicPartition(source, 0);
        produce(source, 1, 0, 10);
        try (var consumer = consumer(COMMITTED, group); var producer = transactional("offsets", 60_000)) {
            consumer.subscribe(List.of(source));
            Set<String> seen = new TreeSet<>();
            pollUntil(() -> seen.size() == 10, consumer, seen);
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(target, "aborted"));
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(5)), consumer.groupMetadata());
            producer.abortTransaction();
            expect(null, consumer.committed(Set.of(partition)).get(partition));
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(target, "v0"));
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(10, "note")),
                consumer.groupMetadata());
            producer.commitTransaction();
            expect(new OffsetAndMetadata(10, "note"), consumer.committed(Set.of(partition)).get(partition));
        }
        expect(values(0, 1), valuesOf(read(target, 1, COMMITTED, 1)));
    }

    private void fencing() throws Exception {
        String topic = newTopic("fencing", 1);
        String id = "fencing-" + UUID.randomUUID();
        try (var old = transactionalWithId(id, 60_000)) {
            old.beginTransaction();
            old.send(new ProducerRecord<>(topic, "old")).get();
            try (var young = transactionalWithId(id, 60_000)) {
                try {
                    old.send(new ProducerRecord<>(topic, "zombie")).get();
                    old.commitTransaction();
                    throw new AssertionError("the old producer committed after a new one had begun");
                } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                    // expected
                } catch (ExecutionException | KafkaException error) {
                    expectFenced(error);
                }
                young.beginTransaction();
                young.send(new ProducerRecord<>(topic, "v0"));
                young.commitTransaction();
            }
        }
        expect(values(0, 1), valuesOf(read(topic, 1, COMMITTED, 1)));
    }

    private static void expectFenced(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof ProducerFencedException || cause instanceof InvalidProducerEpochException) {
                return;
            }
        }
        throw new AssertionError("found " + error + ", expected a fenced producer");
    }

    private void timeoutAbort() throws Exception {
        String topic = newTopic("timeout", 1);
        String id = "timeout-" + UUID.randomUUID();
        try (var producer = transactionalWithId(id, 1_000); var admin = admin()) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "late")).get();
            until(() -> admin.describeTransactions(List.of(id)).description(id).get().state()
                == TransactionState.COMPLETE_ABORT);
            try {
                producer.commitTransaction();
                throw new AssertionError("a transaction past its timeout was committed");
            } catch (KafkaException expected) {
                // expected
            }
        }
        produce(topic, 1, 0, 1);
        expect(values(0, 1), valuesOf(read(topic, 1, COMMITTED, 1)));
    }

    /** Subscribes with a pattern that the broker evaluates, and finds a topic that is created later. */
    private void pattern() throws Exception {
        String first = newTopic("pattern", 2);
        String prefix = first.substring(0, first.length() - 4);
        Set<String> seen = new TreeSet<>();
        produce(first, 2, 0, 10);
        try (var consumer = consumer(UNCOMMITTED, "pattern-" + UUID.randomUUID())) {
            consumer.subscribe(new SubscriptionPattern(prefix + ".*"));
            pollUntil(() -> seen.size() == 10, consumer, seen);
            String second = prefix + "late";
            try (var admin = admin()) {
                admin.createTopics(List.of(new NewTopic(second, 1, (short) 1))).all().get();
            }
            produce(second, 1, 10, 20);
            pollUntil(() -> seen.size() == 20 && consumer.assignment().size() == 3, consumer, seen);
        }
    }

    /** Lets a static member leave and return. It gets its partitions back, and the other member keeps its own. */
    private void staticMember() throws Exception {
        String topic = newTopic("static", 4);
        String group = "static-" + UUID.randomUUID();
        Map<String, Object> one = Map.of("group.instance.id", "one");
        Set<String> seen = new TreeSet<>();
        try (var other = consumer(UNCOMMITTED, group)) {
            other.subscribe(List.of(topic));
            Set<TopicPartition> held = new HashSet<>();
            try (var first = consumer(UNCOMMITTED, group, one)) {
                first.subscribe(List.of(topic));
                until(() -> {
                    collect(first, seen);
                    collect(other, seen);
                    return first.assignment().size() == 2 && other.assignment().size() == 2;
                });
                held.addAll(first.assignment());
            }
            try (var again = consumer(UNCOMMITTED, group, one)) {
                again.subscribe(List.of(topic));
                until(() -> {
                    collect(again, seen);
                    collect(other, seen);
                    return !again.assignment().isEmpty();
                });
                expect(held, again.assignment());
            }
        }
    }

    private void morePartitions() throws Exception {
        String topic = newTopic("more", 1);
        Set<String> seen = new TreeSet<>();
        try (var consumer = consumer(UNCOMMITTED, "more-" + UUID.randomUUID()); var admin = admin()) {
            consumer.subscribe(List.of(topic));
            pollUntil(() -> consumer.assignment().size() == 1, consumer, seen);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            pollUntil(() -> consumer.assignment().size() == 3, consumer, seen);
            admin.deleteTopics(List.of(topic)).all().get();
            pollUntil(() -> consumer.assignment().isEmpty(), consumer, seen);
        }
    }

    /** Prints "waiting" in a stable group, and continues after a line of input. Another broker runs by then. */
    private void restartInGroup() throws Exception {
        String topic = newTopic("restart", 4);
        String group = "restart-" + UUID.randomUUID();
        Set<String> seen = new TreeSet<>();
        produce(topic, 4, 0, 20);
        try (var first = consumer(UNCOMMITTED, group); var second = consumer(UNCOMMITTED, group)) {
            first.subscribe(List.of(topic));
            second.subscribe(List.of(topic));
            until(() -> {
                collect(first, seen);
                collect(second, seen);
                return first.assignment().size() == 2 && second.assignment().size() == 2 && seen.size() == 20;
            });
            first.commitSync();
            second.commitSync();
            Set<TopicPartition> held = new HashSet<>(first.assignment());
            int epoch = first.groupMetadata().generationId();
            System.out.println("waiting");
            if (System.in.read() < 0) {
                throw new AssertionError("standard input ended");
            }
            produce(topic, 4, 20, 40);
            until(() -> {
                collect(first, seen);
                collect(second, seen);
                return seen.size() == 40;
            });
            first.commitSync();
            second.commitSync();
            expect(held, first.assignment());
            expect(epoch, first.groupMetadata().generationId());
        }
    }

    /** Prints "waiting" in an open transaction, and continues after a line of input. Another broker runs by then. */
    private void restartInTransaction() throws Exception {
        String topic = newTopic("restart", 2);
        try (var producer = transactional("restart", 60_000)) {
            producer.beginTransaction();
            send(producer, topic, 2, 0, 10);
            producer.flush();
            System.out.println("waiting");
            if (System.in.read() < 0) {
                throw new AssertionError("standard input ended");
            }
            send(producer, topic, 2, 10, 20);
            producer.commitTransaction();
        }
        expect(values(0, 20), valuesOf(read(topic, 2, COMMITTED, 20)));
    }

    private String newTopic(String name, int partitions) throws Exception {
        String topic = name + "-" + UUID.randomUUID();
        try (var admin = admin()) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        }
        return topic;
    }

    private Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    private KafkaProducer<String, String> producer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("bootstrap.servers", bootstrap);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    private KafkaProducer<String, String> transactional(String name, int timeoutMs) {
        return transactionalWithId(name + "-" + UUID.randomUUID(), timeoutMs);
    }

    private KafkaProducer<String, String> transactionalWithId(String id, int timeoutMs) {
        var producer = producer(Map.of("transactional.id", id, "transaction.timeout.ms", timeoutMs));
        producer.initTransactions();
        return producer;
    }

    private KafkaConsumer<String, String> consumer(String isolation, String group) {
        return consumer(isolation, group, Map.of());
    }

    private KafkaConsumer<String, String> consumer(String isolation, String group, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.putAll(Map.of("bootstrap.servers", bootstrap, "isolation.level", isolation, "group.id", group,
            "auto.offset.reset", "earliest", "enable.auto.commit", "false", "group.protocol", groupProtocol,
            "metadata.max.age.ms", 1_000, "allow.auto.create.topics", false));  // a deleted topic stays away
        if (groupProtocol.equals("classic")) {
            all.putAll(Map.of("session.timeout.ms", 10_000, "heartbeat.interval.ms", 500));
        }
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    private void produce(String topic, int partitions, int from, int to) {
        try (var producer = producer(Map.of())) {
            send(producer, topic, partitions, from, to);
        }
    }

    private static void send(KafkaProducer<String, String> producer, String topic, int partitions, int from, int to) {
        for (int i = from; i < to; i++) {
            producer.send(new ProducerRecord<>(topic, i % partitions, null, "v" + i));
        }
    }

    /**
     * Reads a topic from its beginning to its end for the isolation level. The broker answers a commit before it writes
     * the markers, so this method reads again while fewer records are committed than expected.
     */
    private List<ConsumerRecord<String, String>> read(String topic, int partitions, String isolation, int expected)
            throws Exception {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        until(() -> {
            records.clear();
            records.addAll(readOnce(topic, partitions, isolation));
            return records.size() >= expected || isolation.equals(UNCOMMITTED);
        });
        expect(expected, records.size());
        return records;
    }

    private List<ConsumerRecord<String, String>> readOnce(String topic, int partitions, String isolation)
            throws Exception {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        try (var consumer = consumer(isolation, "reader-" + UUID.randomUUID())) {
            consumer.assign(partitions(topic, partitions));
            consumer.seekToBeginning(consumer.assignment());
            Map<TopicPartition, Long> ends = consumer.endOffsets(consumer.assignment());
            until(() -> {
                consumer.poll(POLL).forEach(records::add);
                return ends.entrySet().stream().allMatch(end -> consumer.position(end.getKey()) >= end.getValue());
            });
        }
        return records;
    }

    private static Collection<TopicPartition> partitions(String topic, int count) {
        return IntStream.range(0, count).mapToObj(index -> new TopicPartition(topic, index)).toList();
    }

    private static Set<String> valuesOf(List<ConsumerRecord<String, String>> records) {
        Set<String> values = new TreeSet<>();
        records.forEach(record -> values.add(record.value()));
        return values;
    }

    private static Set<String> values(int from, int to) {
        Set<String> values = new TreeSet<>();
        IntStream.range(from, to).forEach(index -> values.add("v" + index));
        return values;
    }

    private static void collect(KafkaConsumer<String, String> consumer, Set<String> seen) {
        consumer.poll(POLL).forEach(record -> seen.add(record.value()));
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void pollUntil(Condition condition, KafkaConsumer<String, String> consumer, Set<String> seen)
            throws Exception {
        until(() -> {
            collect(consumer, seen);
            return condition.holds();
        });
    }

    private static void until(Condition condition) throws Exception {
        long deadline = System.nanoTime() + LIMIT_MS * 1_000_000;
        while (!condition.holds()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("did not come about in " + LIMIT_MS + " ms");
            }
        }
    }

    private static void expect(Object expected, Object found) {
        if (expected == null ? found != null : !expected.equals(found)) {
            throw new AssertionError("found " + found + ", expected " + expected);
        }
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
