package kbroker;

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.HexFormat;
import java.security.MessageDigest;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.*;             // before Kafka 4.4
import org.apache.kafka.common.utils.internals.*;   // from Kafka 4.4
import org.apache.kafka.common.utils.Utils;
import org.xerial.snappy.SnappyError;

/**
 * Reads batches with a Java consumer. Each line of the file is a batch in base 64. The output line for it has the
 * number of records and a digest of their values, or the exception.
 */
public final class RecordReader {
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            System.out.println(read(Base64.getDecoder().decode(line)));
        }
    }

    private static String read(byte[] batches) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        int count = 0;
        try {
            for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(batches)).batches()) {
                batch.ensureValid();
                try (CloseableIterator<Record> records = batch.streamingIterator(BufferSupplier.NO_CACHING)) {
                    while (records.hasNext()) {
                        Record record = records.next();
                        count++;
                        digest.update(record.hasValue() ? Utils.toArray(record.value()) : new byte[0]);
                    }
                }
            }
        } catch (Exception | OutOfMemoryError | SnappyError refused) {
            return "refused after " + count + ": " + refused;
        }
        return count + " " + HexFormat.of().formatHex(digest.digest());
    }
}
