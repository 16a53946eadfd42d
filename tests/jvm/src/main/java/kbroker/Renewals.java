package kbroker;

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.SortedSet;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A share consumer that renews the locks of all records for a while, and then accepts them. The arguments are the
 * broker, the topic, which names the group too, the number of records and the time in milliseconds.
 */
public final class Renewals {
    private static final long LIMIT_MS = 90_000;
    private static final Duration POLL = Duration.ofMillis(200);

    public static void main(String[] arguments) {
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        long renewalMs = Long.parseLong(arguments[3]);
        SortedSet<String> accepted = new TreeSet<>();
        SortedSet<String> deliveries = new TreeSet<>();
        SortedSet<String> failures = new TreeSet<>();
        boolean hasRenewed = false;
        try (var consumer = new KafkaShareConsumer<>(Map.of("bootstrap.servers", arguments[0], "group.id", topic,
                "share.acknowledgement.mode", "explicit"), new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long start = System.nanoTime();
            long renewalStart = 0;
            while (accepted.size() < count) {
                if (elapsedMs(start) > LIMIT_MS) {
                    throw new AssertionError("accepted " + accepted + ", failures " + failures);
                }
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                if (records.isEmpty()) {
                    continue;
                }
                renewalStart = renewalStart == 0 ? System.nanoTime() : renewalStart;
                boolean isOver = elapsedMs(renewalStart) > renewalMs;
                for (ConsumerRecord<String, String> record : records) {
                    consumer.acknowledge(record, isOver ? AcknowledgeType.ACCEPT : AcknowledgeType.RENEW);
                    deliveries.add(record.value() + " " + record.deliveryCount().orElseThrow());
                    if (isOver) {
                        accepted.add(record.value());
                    }
                }
                hasRenewed |= !isOver;
                consumer.commitSync().values().stream().flatMap(failure -> failure.stream())
                    .forEach(failure -> failures.add(failure.getClass().getSimpleName()));
            }
            print("lock", List.of(consumer.acquisitionLockTimeoutMs().orElseThrow() + " ms"));
        }
        print("renewed", List.of(String.valueOf(hasRenewed)));
        print("deliveries", deliveries);
        print("accepted", accepted);
        print("failures", failures);
    }

    private static long elapsedMs(long since) {
        return (System.nanoTime() - since) / 1_000_000;
    }

    private static void print(String what, Collection<String> values) {
        System.out.println(what + ": " + String.join(", ", values));
    }
}
