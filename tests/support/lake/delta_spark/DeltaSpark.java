import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.spark.sql.SparkSession;

/**
 * Spark with Delta's own writer. Each line of the input is an SQL statement. The answer is a line that begins with
 * "answer ": the rows as an array of JSON, or the first line of an error after "failed ".
 */
public class DeltaSpark {
    public static void main(String[] arguments) throws Exception {
        SparkSession spark = SparkSession.builder().master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.sql.warehouse.dir", arguments[0])
            // a zone with another date than UTC for some hours
            .config("spark.sql.session.timeZone", "America/New_York")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
            .config("spark.databricks.delta.snapshotPartitions", "1")
            .config("spark.databricks.delta.retentionDurationCheck.enabled", "false")
            .getOrCreate();
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = input.readLine()) != null; ) {
            String answer;
            try {
                List<String> rows = spark.sql(line).toJSON().collectAsList();
                answer = "answer [" + String.join(",", rows) + "]";
            } catch (Exception error) {
                answer = "failed " + String.valueOf(error.getMessage()).lines().findFirst().orElse("");
            }
            System.out.println(answer);
        }
        spark.stop();
    }
}
