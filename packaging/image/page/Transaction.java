import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transaction {
    public static void main(String[] arguments) {
        try (var container = new KbrokerContainer()) {
            container.start();
            var servers = container.getBootstrapServers();
            try (var producer = new KafkaProducer<>(Map.of("bootstrap.servers", servers, "transactional.id", "writer"),
                                                    new StringSerializer(), new StringSerializer());
                 var consumer = new KafkaConsumer<>(Map.of("bootstrap.servers", servers, "group.id", "reader",
                                                           "auto.offset.reset", "earliest"),
                                                    new StringDeserializer(), new StringDeserializer())) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>("orders", "kept"));
                producer.commitTransaction();
                consumer.subscribe(List.of("orders"));
                var records = consumer.poll(Duration.ofSeconds(30));
                while (records.isEmpty()) {
                    records = consumer.poll(Duration.ofSeconds(30));
                }
                System.out.println("read " + records.iterator().next().value());
            }
        }
    }
}
