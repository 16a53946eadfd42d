import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Runs Kafka's own clients, always connected, on commands from standard input:
 *
 *     produce TOPIC true|false MILLISECONDS COMMIT_MILLISECONDS     with transactions or without
 *     consume TOPIC true|false RECORDS                              read_committed or read_uncommitted
 *
 * During a command it prints the number of records delivered so far, and at its end "done".
 */
class SliceClient {
    static final int POLL_MS = 10_000;

    final Map<Boolean, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    final Map<Boolean, KafkaConsumer<byte[], byte[]>> consumers = new HashMap<>();
    final AtomicLong delivered = new AtomicLong();
    final byte[] value;

    SliceClient(String address, byte[] value) {
        this.value = value;
        for (boolean strict : new boolean[] {false, true}) {
            Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", address,
                "key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer",
                "value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer"));
            if (strict)
                settings.put("transactional.id", "slices");
            producers.put(strict, new KafkaProducer<>(settings));
            consumers.put(strict, new KafkaConsumer<>(Map.of("bootstrap.servers", address,
                "key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer",
                "value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer",
                "isolation.level", strict ? "read_committed" : "read_uncommitted", "enable.auto.commit", false)));
        }
        producers.get(true).initTransactions();
    }

    void produce(String topic, boolean transactional, long millis, long commitMillis) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producers.get(transactional);
        Exception[] fault = new Exception[1];
        Callback counting = (metadata, exception) -> {
            delivered.incrementAndGet();
            if (exception != null)
                fault[0] = exception;
        };
        delivered.set(0);
        long end = System.nanoTime() + millis * 1_000_000;
        long first = -1;
        for (long now = -1; now <= first || System.nanoTime() < end; System.out.println(now)) {
            if (transactional)
                producer.beginTransaction();
            long commitAt = System.nanoTime() + commitMillis * 1_000_000;
            while (System.nanoTime() < commitAt)
                producer.send(new ProducerRecord<>(topic, 0, null, value), counting);
            if (transactional)
                producer.commitTransaction();
            now = delivered.get();
            if (first < 0)
                first = now;
        }
        producer.flush();
        if (fault[0] != null)
            throw fault[0];
    }

    void consume(String topic, boolean committed, long records) {
        KafkaConsumer<byte[], byte[]> consumer = consumers.get(committed);
        TopicPartition partition = new TopicPartition(topic, 0);
        consumer.assign(List.of(partition));
        consumer.seekToBeginning(List.of(partition));
        for (long read = 0; read < records;) {
            int more = consumer.poll(Duration.ofMillis(POLL_MS)).count();
            if (more == 0)
                throw new IllegalStateException(records - read + " records are missing");
            boolean isFirst = read == 0;
            read += more;
            if (isFirst || read >= records)
                System.out.println(read);
        }
        consumer.assign(List.of());
    }

    public static void main(String[] arguments) throws Exception {
        SliceClient client = new SliceClient(arguments[0], arguments[1].getBytes());
        System.out.println("ready");
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            boolean strict = Boolean.parseBoolean(words[2]);
            if (words[0].equals("produce"))
                client.produce(words[1], strict, Long.parseLong(words[3]), Long.parseLong(words[4]));
            else
                client.consume(words[1], strict, Long.parseLong(words[3]));
            System.out.println("done");
        }
        System.exit(0);
    }
}
