package kbroker;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/** A transactional producer for tests/support/clients/line_producer.py. The arguments are the broker and the transactional id. */
public final class LineProducer {
    private LineProducer() { }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "transactional.id", arguments[1]);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            System.out.println("ok");
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                try {
                    run(producer, line.split(" "));
                    System.out.println("ok");
                } catch (Exception error) {
                    System.out.println("failed " + error);
                }
            }
        }
    }

    private static void run(KafkaProducer<String, String> producer, String[] words) throws Exception {
        switch (words[0]) {
            case "begin" -> producer.beginTransaction();
            case "send" -> producer.send(new ProducerRecord<>(words[1], Integer.valueOf(words[2]), null, words[3])).get();
            case "flush" -> producer.flush();
            case "offsets" -> producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition(words[2], Integer.parseInt(words[3])),
                       new OffsetAndMetadata(Long.parseLong(words[4]))), new ConsumerGroupMetadata(words[1]));
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            default -> throw new IllegalArgumentException(words[0]);
        }
    }
}
