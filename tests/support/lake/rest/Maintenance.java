import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.expressions.Expressions;

/**
 * Iceberg's own library on a table of a SQL catalog. Arguments: the file of SQLite, the warehouse, the table, and a time.
 * It prints the files whose rows can have that time or a later one. Then it rewrites the manifests, and expires all
 * snapshots but the newest.
 */
public class Maintenance {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties = new HashMap<>();
        properties.put("catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog");
        properties.put("jdbc.schema-version", "V1");
        properties.put("uri", "jdbc:sqlite:" + arguments[0]);
        properties.put("warehouse", arguments[1]);
        Catalog catalog = CatalogUtil.buildIcebergCatalog("default", properties, new Configuration());
        Table table = catalog.loadTable(TableIdentifier.parse(arguments[2]));
        var scan = table.newScan().filter(Expressions.greaterThanOrEqual("timestamp", arguments[3]));
        try (var files = scan.planFiles()) {
            for (FileScanTask each : files) {
                System.out.println(each.file().location());
            }
        }
        table.rewriteManifests().commit();
        table.newAppend().commit();
        table.expireSnapshots().expireOlderThan(System.currentTimeMillis() + 1).retainLast(1).commit();
    }
}
