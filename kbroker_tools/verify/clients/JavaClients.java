import java.io.*;
import java.net.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * Producers and consumers of the Java client, which java.py uses. Each of them has a connection to this program. A line
 * from java.py is a call with its arguments. The line of the answer has three parts: "ok" or "failed", the acknowledged
 * records as [number:offset,...], and the result of the call.
 */
public final class JavaClients {
    private abstract static class Client {
        final Queue<String> acknowledged = new ConcurrentLinkedQueue<>();

        abstract String call(String[] words) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);      // loggers print to standard error
        ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        daemon(() -> {
            while (true) {
                Socket end = listener.accept();
                daemon(() -> serve(end));
            }
        });
        out.println(listener.getLocalPort());
        System.in.readAllBytes();       // returns when the program that started this one ends
        System.exit(0);
    }

    private interface Work {
        void run() throws Exception;
    }

    private static void daemon(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static void serve(Socket end) throws Exception {
        try (end; BufferedReader lines = new BufferedReader(new InputStreamReader(end.getInputStream()));
                PrintWriter answers = new PrintWriter(end.getOutputStream())) {
            end.setTcpNoDelay(true);
            Client client = null;
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split(" ");
                String status = "ok", result = "";
                try {
                    switch (words[0]) {
                        case "producer" -> client = new Writer(settings(words));
                        case "consumer" -> client = new Getter(settings(words));
                        case "member" -> client = new Member(settings(words));
                        default -> result = client.call(words);
                    }
                } catch (Exception error) {
                    status = "failed";
                    result = " " + error.toString().replaceAll("\\s+", " ");
                }
                StringJoiner acknowledged = new StringJoiner(",", status + " [", "]");
                while (client != null && !client.acknowledged.isEmpty()) {
                    acknowledged.add(client.acknowledged.remove());
                }
                answers.println(acknowledged + result);
                answers.flush();
            }
        }
    }

    private static Map<String, Object> settings(String[] words) {
        Map<String, Object> settings = new HashMap<>();
        for (String word : Arrays.asList(words).subList(1, words.length)) {
            settings.put(word.substring(0, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
        }
        return settings;
    }

    private static Map<TopicPartition, Long> positions(String[] words, int first) {
        Map<TopicPartition, Long> found = new HashMap<>();
        for (int at = first; at < words.length; at += 3) {
            found.put(new TopicPartition(words[at], Integer.parseInt(words[at + 1])), Long.valueOf(words[at + 2]));
        }
        return found;
    }

    private static final class Writer extends Client {
        private final KafkaProducer<String, String> producer;
        private volatile Exception failure;

        Writer(Map<String, Object> settings) {
            producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        }

        @Override
        @SuppressWarnings("removal")
        String call(String[] words) throws Exception {
            switch (words[0]) {
                case "claim" -> producer.initTransactions();
                case "begin" -> {
                    failure = null;
                    producer.beginTransaction();
                }
                case "send" -> producer.send(new ProducerRecord<>(words[1], Integer.valueOf(words[2]), null, words[3]),
                        (metadata, error) -> {
                            if (error == null) {
                                acknowledged.add(words[3] + ":" + (metadata.hasOffset() ? metadata.offset() : -1));
                            } else {
                                failure = error;
                            }
                        });
                case "flush" -> {
                    producer.flush();
                    Exception found = failure;
                    failure = null;
                    if (found != null) {
                        throw found;
                    }
                }
                case "offsets" -> {
                    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                    positions(words, 4).forEach((place, offset) -> offsets.put(place, new OffsetAndMetadata(offset)));
                    String member = words[3].equals("-") ? "" : words[3];
                    producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(words[1],
                            Integer.parseInt(words[2]), member, Optional.empty()));
                }
                case "commit" -> producer.commitTransaction();
                case "abort" -> producer.abortTransaction();
                case "close" -> producer.close(Duration.ZERO);
                default -> throw new IllegalArgumentException(words[0]);
            }
            return "";
        }
    }

    private static class Getter extends Client {
        final KafkaConsumer<String, String> consumer;

        Getter(Map<String, Object> settings) {
            consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        }

        @Override
        @SuppressWarnings("deprecation")
        String call(String[] words) {
            StringBuilder result = new StringBuilder();
            switch (words[0]) {
                case "seek" -> {
                    Map<TopicPartition, Long> places = positions(words, 1);
                    consumer.assign(places.keySet());
                    places.forEach(consumer::seek);
                }
                case "poll" -> {        // topic, partition and count, then offset and value of each record
                    var records = consumer.poll(Duration.ofMillis(Long.parseLong(words[1])));
                    for (TopicPartition place : records.partitions()) {
                        var rows = records.records(place);
                        result.append(" %s %d %d".formatted(place.topic(), place.partition(), rows.size()));
                        rows.forEach(row -> result.append(" " + row.offset() + " " + (row.value() != null
                            && row.value().matches("[0-9]{1,18}") ? row.value() : "-1")));
                    }
                }
                case "close" -> consumer.close(Duration.ZERO);
                default -> throw new IllegalArgumentException(words[0]);
            }
            return result.toString();
        }
    }

    /** A consumer of a group. The answer to "poll" begins with the number of changes of its assignment. */
    private static final class Member extends Getter {
        private int changes;

        Member(Map<String, Object> settings) {
            super(settings);
        }

        @Override
        String call(String[] words) {
            return switch (words[0]) {
                case "subscribe" -> {
                    consumer.subscribe(List.of(words[1]), new ConsumerRebalanceListener() {
                        @Override
                        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                            changes++;
                        }

                        @Override
                        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                            changes++;
                        }
                    });
                    yield "";
                }
                case "poll" -> {
                    String records = super.call(words);
                    yield " " + changes + records;
                }
                case "metadata" -> {
                    ConsumerGroupMetadata group = consumer.groupMetadata();
                    String member = group.memberId().isEmpty() ? "-" : group.memberId();
                    yield " " + group.groupId() + " " + group.generationId() + " " + member;
                }
                case "rewind" -> {
                    positions(words, 1).forEach(consumer::seek);
                    yield "";
                }
                default -> super.call(words);
            };
        }
    }
}
