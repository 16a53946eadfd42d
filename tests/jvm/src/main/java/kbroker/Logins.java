package kbroker;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileInputStream;
import java.io.InputStream;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Runs the Java producer and consumer with logins. {@code Logins once FILE...} produces a record with the settings of
 * each file and prints the error of each, or an empty string. {@code Logins renew COUNT FILE...} produces with all
 * files in parallel, until each producer has renewed its login COUNT times. It reads each topic, which is named like
 * the file, with a further client, and prints for each file how many records were sent, which failed, and what was
 * read.
 */
public final class Logins {
    private static final Duration LIMIT = Duration.ofSeconds(30);
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long PAUSE_MS = 5;

    public static void main(String[] arguments) throws Exception {
        Object answer = arguments[0].equals("once")
            ? once(Arrays.asList(arguments).subList(1, arguments.length))
            : renewAll(Integer.parseInt(arguments[1]), Arrays.asList(arguments).subList(2, arguments.length));
        System.out.println(new ObjectMapper().writeValueAsString(answer));
    }

    private static Map<String, String> once(List<String> files) throws Exception {
        Map<String, String> errors = new LinkedHashMap<>();
        for (String file : files) {
            try (var producer = producer(file)) {
                producer.send(new ProducerRecord<>("records", file)).get();
                errors.put(file, "");
            } catch (ExecutionException failure) {
                errors.put(file, failure.getCause().toString());
            }
        }
        return errors;
    }

    private static Map<String, Object> renewAll(int renewals, List<String> files) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(files.size());
        Map<String, Future<Map<String, Object>>> running = new LinkedHashMap<>();
        for (String file : files) {
            running.put(file, threads.submit(() -> renew(file, renewals)));
        }
        Map<String, Object> found = new LinkedHashMap<>();
        for (String file : files) {
            found.put(file, running.get(file).get());
        }
        threads.shutdown();
        return found;
    }

    private static Map<String, Object> renew(String file, int renewals) throws Exception {
        String topic = Path.of(file).getFileName().toString();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        long deadline = System.nanoTime() + LIMIT.toNanos();
        try (var producer = producer(file)) {
            while (renewalsOf(producer) < renewals && System.nanoTime() < deadline) {
                sent.add(producer.send(new ProducerRecord<>(topic, 0, null, String.valueOf(sent.size()))));
                Thread.sleep(PAUSE_MS);
            }
        }
        List<String> errors = new ArrayList<>();
        for (Future<RecordMetadata> record : sent) {
            try {
                record.get();
            } catch (ExecutionException failure) {
                errors.add(failure.getCause().toString());
            }
        }
        return Map.of("sent", sent.size(), "errors", errors, "read", read(file, topic, sent.size()));
    }

    private static double renewalsOf(KafkaProducer<String, String> producer) {
        return producer.metrics().entrySet().stream()
            .filter(metric -> metric.getKey().name().equals("successful-reauthentication-total"))
            .mapToDouble(metric -> (Double) metric.getValue().metricValue()).max().orElse(0);
    }

    private static List<Integer> read(String file, String topic, int expected) throws Exception {
        List<Integer> values = new ArrayList<>();
        TopicPartition partition = new TopicPartition(topic, 0);
        try (var consumer = new KafkaConsumer<>(settings(file), new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition), LIMIT).get(partition);
            long deadline = System.nanoTime() + LIMIT.toNanos();
            while (consumer.position(partition) < Math.max(end, expected) && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    values.add(Integer.valueOf(record.value()));
                }
            }
        }
        return values;
    }

    private static KafkaProducer<String, String> producer(String file) throws Exception {
        return new KafkaProducer<>(settings(file), new StringSerializer(), new StringSerializer());
    }

    private static Map<String, Object> settings(String file) throws Exception {
        Properties properties = new Properties();
        try (InputStream stream = new FileInputStream(file)) {
            properties.load(stream);
        }
        Map<String, Object> settings = new HashMap<>();
        properties.forEach((name, value) -> settings.put((String) name, value));
        return settings;
    }

    private Logins() {
    }
}
