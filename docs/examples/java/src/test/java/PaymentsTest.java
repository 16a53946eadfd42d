import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class PaymentsTest {
    private static final TopicPartition PARTITION = new TopicPartition("payments", 0);

    private Kbroker broker;

    @BeforeEach
    void startBroker() throws Exception {
        broker = new Kbroker();
    }

    @AfterEach
    void closeBroker() throws Exception {
        broker.close();
    }

    @Test
    void aPaymentSurvivesACrashBetweenTheDecisionToCommitAndItsMarkers() throws Exception {
        createTopic(broker);
        int held = broker.rule("transaction.prepared", "hold", Map.of());
        var payment = CompletableFuture.runAsync(() -> pay(broker));
        broker.awaitMatch(held);
        broker.kill();
        broker.start();
        payment.get(); // Java's producer asks the new process again
        assertEquals(List.of("10"), values(broker));
    }

    @Test
    void aTransactionWithoutAnEndIsAbortedAfterItsTimeout() throws Exception {
        createTopic(broker);
        var settings = Map.<String, Object>of("transactional.id", "shop", "transaction.timeout.ms", 900_000);
        try (var producer = producer(broker, settings)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("payments", "never committed"));
            producer.flush();
            broker.advance(Duration.ofMinutes(16));
            assertEquals(List.of(), values(broker)); // without the clock, the reader would wait for 16 minutes
            producer.close(Duration.ZERO);
        }
    }

    @Test
    void aPaymentWhoseAcknowledgementIsLostIsWrittenOnce() throws Exception {
        createTopic(broker);
        int lost = broker.rule("reply", "drop", Map.of("api", "Produce", "occurrence", 1));
        pay(broker);
        assertEquals(List.of("10"), values(broker));
        assertEquals(1, broker.ask("GET", "/rules/" + lost, null).get("matched").asInt());
    }

    @Test
    void aPaymentIsWrittenOnceWhateverTheBrokerDoesWhenItDies() throws Exception {
        int steps = Exploration.explore(fresh -> {
            createTopic(fresh);
            pay(fresh);
            assertEquals(List.of("10"), values(fresh));
        }, PaymentsTest::isChosen);
        assertTrue(steps > 3, "steps: " + steps);
    }

    /** Chooses the steps of a commit, and the replies before them. */
    private static boolean isChosen(JsonNode step) {
        return step.path("transactional_id").asText().equals("shop") && (!step.hasNonNull("api")
            || step.get("point").asText().equals("reply") && List.of("Produce", "EndTxn").contains(step.get("api").asText()));
    }

    /** The application. */
    private static void pay(Kbroker broker) {
        try (var producer = producer(broker, Map.of("transactional.id", "shop"))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("payments", "10"));
            producer.commitTransaction();
        }
    }

    private static KafkaProducer<String, String> producer(Kbroker broker, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.putAll(Map.of("bootstrap.servers", broker.bootstrapServers(), "reconnect.backoff.max.ms", 100));
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    private static void createTopic(Kbroker broker) throws Exception {
        try (var admin = Admin.create(Map.of("bootstrap.servers", broker.bootstrapServers()))) {
            admin.createTopics(List.of(new NewTopic("payments", 1, (short) 1))).all().get();
        }
    }

    /** Returns the values of all records that a reader with read_committed gets. A last record ends the reading. */
    private static List<String> values(Kbroker broker) throws Exception {
        try (var producer = producer(broker, Map.of())) {
            producer.send(new ProducerRecord<>("payments", "end")).get();
        }
        List<String> found = new ArrayList<>();
        try (var consumer = new KafkaConsumer<>(Map.<String, Object>of("bootstrap.servers", broker.bootstrapServers(),
                "isolation.level", "read_committed"), new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(PARTITION));
            consumer.seekToBeginning(List.of(PARTITION));
            while (!found.contains("end"))
                consumer.poll(Duration.ofSeconds(1)).forEach(record -> found.add(record.value()));
        }
        return found.subList(0, found.size() - 1);
    }
}
