import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * A REST catalog on a free port of the loopback address. Its arguments are properties of the catalog, such as
 * uri=jdbc:sqlite:FILE. It prints its port, and ends when its input ends.
 */
public class RestCatalog {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties = new HashMap<>();
        properties.put("catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog");
        properties.put("jdbc.schema-version", "V1");
        for (String argument : arguments) {
            String[] pair = argument.split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        var catalog = CatalogUtil.buildIcebergCatalog("lake", properties, new Configuration());
        var handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
        handler.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
        server.setHandler(handler);
        server.start();
        System.out.println(((ServerConnector) server.getConnectors()[0]).getLocalPort());
        while (System.in.read() != -1) {
            // The tests write nothing.
        }
        server.stop();
        System.exit(0);
    }
}
