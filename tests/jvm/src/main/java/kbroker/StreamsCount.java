package kbroker;

import java.util.Properties;
import java.util.concurrent.CountDownLatch;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KeyValueMapper;
import org.apache.kafka.streams.kstream.Produced;

/** Counts the values of a topic exactly once, as a member of a streams group. It groups the records by value. */
public final class StreamsCount {

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        properties.put("group.protocol", "streams");
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "200");
        properties.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), "10000");
        properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        KeyValueMapper<String, String, String> byValue = (key, value) -> value;
        builder.stream(arguments[2], Consumed.with(Serdes.String(), Serdes.String()))
            .groupBy(byValue, Grouped.with("words", Serdes.String(), Serdes.String()))
            .count()
            .toStream()
            .to(arguments[3], Produced.with(Serdes.String(), Serdes.Long()));
        try (KafkaStreams streams = new KafkaStreams(builder.build(), properties)) {
            CountDownLatch ended = new CountDownLatch(1);
            streams.setStateListener((now, before) -> {
                System.out.println(now);
                if (now == KafkaStreams.State.ERROR) {
                    ended.countDown();
                }
            });
            Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
            streams.start();
            ended.await();
        }
        System.exit(1);
    }
}
