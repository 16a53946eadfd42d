package kbroker;

import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.PreparedTxnState;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.internals.Sender;
import org.apache.kafka.clients.producer.internals.TransactionManager;
import org.apache.kafka.clients.producer.internals.TransactionalRequestResult;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.requests.InitProducerIdRequest;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.*;             // before Kafka 4.4
import org.apache.kafka.common.utils.internals.*;   // from Kafka 4.4

/**
 * The released producer in two-phase commit (KIP-939). Its public interface has no two-phase commit, but its
 * transaction manager implements most of it, and this program calls the manager. Three repairs are needed.
 * InitProducerId gets the two flags, which the manager leaves out. Version 6 counts as stable. A recovered transaction
 * counts as started: otherwise the producer would report a commit that it never sends.
 *
 * <p>The arguments are the broker, a step, the transactional id, the topic, and perhaps a token. Producers of earlier
 * steps stay alive as zombies.
 */
public final class TwoPhase {
    private static final long LIMIT_MS = 60_000;
    private static final int RECORDS = 5;
    private static final String MARK = "latestVersionUnstable";
    private static final boolean IS_UNSTABLE = ApiMessageType.INIT_PRODUCER_ID.latestVersionUnstable();
    private static final Map<String, KafkaProducer<String, String>> ZOMBIES = new HashMap<>();

    private TwoPhase() { }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String id = arguments[2];
        String topic = arguments[3];
        switch (arguments[1]) {
            case "unstable" -> unstable();
            case "ordinary" -> ordinary(bootstrap, id, topic);
            case "prepare" -> prepare(bootstrap, id, topic);
            case "recover" -> recover(bootstrap, id, topic, new PreparedTxnState(arguments[4]));
            case "zombie" -> zombie(id);
            default -> throw new IllegalArgumentException(arguments[1]);
        }
    }

    private static void unstable() {
        print("unstable", String.valueOf(IS_UNSTABLE));
    }

    /** A transaction of the unmodified client. */
    private static void ordinary(String bootstrap, String id, String topic) throws Exception {
        try (KafkaProducer<String, String> producer = producer(bootstrap, id, false)) {
            producer.initTransactions();
            transaction(producer, topic, "ordinary");
            producer.commitTransaction();
        }
    }

    private static void prepare(String bootstrap, String id, String topic) throws Exception {
        KafkaProducer<String, String> producer = producer(bootstrap, id, true);
        ZOMBIES.put(id, producer);
        initialize(producer, false);
        transaction(producer, topic, "prepared " + id);
        manager(producer).prepareTransaction();
        print("token", token(producer));
    }

    /**
     * Ends the transaction as completeTransaction does: commits it if {@code wanted} is the token of the kept
     * transaction, and otherwise aborts it.
     */
    private static void recover(String bootstrap, String id, String topic, PreparedTxnState wanted) throws Exception {
        try (KafkaProducer<String, String> producer = producer(bootstrap, id, true)) {
            initialize(producer, true);
            print("prepared", String.valueOf(manager(producer).isPrepared()));
            if (manager(producer).isPrepared()) {
                print("token", token(producer));
                set(manager(producer), "transactionStarted", true);
                if (new PreparedTxnState(token(producer)).equals(wanted)) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
            transaction(producer, topic, "after " + id);
            producer.commitTransaction();
        }
    }

    private static void zombie(String id) {
        try (KafkaProducer<String, String> producer = ZOMBIES.remove(id)) {
            producer.commitTransaction();
            print("zombie", "committed");
        } catch (RuntimeException error) {
            print("zombie", error.getClass().getSimpleName());
        }
    }

    private static void transaction(KafkaProducer<String, String> producer, String topic, String value) {
        producer.beginTransaction();
        for (int number = 0; number < RECORDS; number++) {
            producer.send(new ProducerRecord<>(topic, value + " " + number));
        }
        producer.flush();
    }

    private static KafkaProducer<String, String> producer(String bootstrap, String id, boolean isTwoPhase)
            throws Exception {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "transactional.id", id));
        if (isTwoPhase) {
            settings.put("transaction.two.phase.commit.enable", true);
        }
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static void initialize(KafkaProducer<String, String> producer, boolean keeps) throws Exception {
        TransactionManager manager = manager(producer);
        TransactionalRequestResult result;
        synchronized (manager) {    // the sender takes requests under this lock
            set(ApiMessageType.INIT_PRODUCER_ID, MARK, false);
            result = manager.initializeTransactions(keeps);
            set(ApiMessageType.INIT_PRODUCER_ID, MARK, IS_UNSTABLE);
            for (Object handler : (Iterable<?>) field(manager, "pendingRequests").get(manager)) {
                if (field(handler, "builder").get(handler) instanceof InitProducerIdRequest.Builder request) {
                    request.data.setEnable2Pc(true).setKeepPreparedTxn(keeps);
                }
            }
        }
        ((Sender) field(producer, "sender").get(producer)).wakeup();
        result.await(LIMIT_MS, TimeUnit.MILLISECONDS, "initialize");
    }

    private static String token(KafkaProducer<String, String> producer) throws Exception {
        ProducerIdAndEpoch found = manager(producer).preparedTransactionState();
        return found.producerId + ":" + found.epoch;
    }

    private static TransactionManager manager(KafkaProducer<String, String> producer) throws Exception {
        return (TransactionManager) field(producer, "transactionManager").get(producer);
    }

    private static void set(Object object, String name, boolean value) throws Exception {
        field(object, name).setBoolean(object, value);
    }

    private static Field field(Object object, String name) throws Exception {
        Class<?> owner = object instanceof Enum<?> constant ? constant.getDeclaringClass() : object.getClass();
        Field found = owner.getDeclaredField(name);
        found.setAccessible(true);
        return found;
    }

    private static void print(String name, String value) {
        System.out.println(name + " " + value);
    }
}
