package kbroker;

import java.util.List;
import java.util.stream.Stream;
import kafka.Kafka;

/**
 * Loads the classes that Kafka's broker, clients and tools use, so that the virtual machine can archive them when it
 * ends. {@code Training PROPERTIES DIRECTORY ADDRESS DUMP_LOG} formats the directory, serves it and runs clients on it.
 * DUMP_LOG is the class of the tool kafka-dump-log.
 */
public final class Training {
    private static final String TOOLS = "org.apache.kafka.tools.";

    public static void main(String[] arguments) throws Exception {
        String settings = arguments[0];
        String metadata = arguments[1] + "/__cluster_metadata-0/00000000000000000000.log";
        String address = arguments[2];
        ToolRuns.catchExits();
        run("kafka.tools.StorageTool", "format", "--cluster-id", "a2Jyb2tlci1qdWRnZXMtMA", "--config", settings);
        Thread broker = new Thread(() -> Kafka.main(new String[] {settings}));
        broker.setDaemon(true);
        broker.start();
        for (String tool : List.of("TopicCommand --create --topic records", "TopicCommand --describe",
                "consumer.group.ConsumerGroupCommand --list", "ConsoleProducer --topic records",
                "consumer.ConsoleConsumer --topic records --from-beginning --timeout-ms 500")) {
            run(Stream.concat(Stream.of((TOOLS + tool).split(" ")), Stream.of("--bootstrap-server", address))
                .toArray(String[]::new));
        }
        run(arguments[3], "--cluster-metadata-decoder", "--files", metadata);
        // Each scenario sends one batch at a time to a partition. With several, Kafka's producer can wait forever on a
        // slow machine: its first batch finds a partition without a leader, and the next one is then out of sequence.
        run("kbroker.Judge", address, "plain_produce", "group_rebalance", "send_offsets",
            "consumer_protocol_group_rebalance");
        System.exit(0);
    }

    private static void run(String... tool) {
        String outcome;
        try {
            outcome = String.valueOf(ToolRuns.run(List.of(tool)));
        } catch (ReflectiveOperationException error) {
            outcome = error.toString();
        }
        if (!outcome.equals("0")) {     // the threads of the broker would keep the virtual machine alive
            System.out.println(String.join(" ", tool) + " exited with " + outcome);
            Runtime.getRuntime().halt(1);
        }
    }

    private Training() {
    }
}
