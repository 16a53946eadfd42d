import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** A broker in a process of its own, with a fresh directory. A test controls it through its control port. */
public class Kbroker implements AutoCloseable {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Path directory;
    private final HttpClient http = HttpClient.newHttpClient();
    private String address = "127.0.0.1:0";
    private String control = "127.0.0.1:0";
    private Process process;
    private boolean isClosed;

    public Kbroker() throws IOException {
        directory = Files.createTempDirectory("kbroker-");
        start();
    }

    public String bootstrapServers() {
        return address;
    }

    /** Starts the process, and waits until it is ready. After the first start, the ports stay the same. */
    public synchronized void start() throws IOException {
        process = new ProcessBuilder("kbroker", "serve", "--log-json", "--listen", address, "--control", control,
            "--data-dir", directory.toString(), "--set", "group.initial.rebalance.delay.ms=0").start();
        BufferedReader log = process.errorReader();
        List<String> lines = new ArrayList<>();
        for (String line = log.readLine(); line != null; line = log.readLine()) {
            JsonNode entry = JSON.readTree(line);
            lines.add(entry.path("message").asText());
            if (entry.path("event").asText().equals("control")) control = entry.get("address").asText();
            if (entry.path("event").asText().equals("ready")) {
                address = entry.get("address").asText();
                new Thread(() -> log.lines().forEach(rest -> {})).start(); // the log must not fill the pipe
                return;
            }
        }
        throw new IOException("kbroker has ended:\n" + String.join("\n", lines));
    }

    /** Starts the process again whenever it ends, from now on. */
    public void keepRunning() {
        process.onExit().thenRun(this::startUnlessClosed);
    }

    private synchronized void startUnlessClosed() {
        try {
            if (!isClosed) {
                start();
                keepRunning();
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Kills the process. The directory stays. */
    public void kill() {
        process.destroyForcibly().onExit().join();
    }

    @Override
    public synchronized void close() throws IOException {
        isClosed = true;
        kill();
        try (var paths = Files.walk(directory)) {
            paths.sorted((one, other) -> other.compareTo(one)).forEach(path -> path.toFile().delete());
        }
    }

    /** Sends a request to the control port, and returns its answer. */
    public JsonNode ask(String method, String path, Object body) throws IOException, InterruptedException {
        var content = body == null ? BodyPublishers.noBody() : BodyPublishers.ofString(JSON.writeValueAsString(body));
        var request = HttpRequest.newBuilder(URI.create("http://" + control + path)).method(method, content);
        var answer = http.send(request.header("Content-Type", "application/json").build(), BodyHandlers.ofString());
        JsonNode found = JSON.readTree(answer.body());
        if (answer.statusCode() >= 300)
            throw new IOException(method + " " + path + ": " + found.path("error").asText());
        return found;
    }

    /** Adds a rule: what happens to the operations that reach a point. Returns the id of the rule. */
    public int rule(String point, String action, Map<String, ?> select) throws IOException, InterruptedException {
        return ask("POST", "/rules", Map.of("point", point, "action", action, "select", select)).get("id").asInt();
    }

    /** Waits until a rule has matched an operation. */
    public void awaitMatch(int rule) throws IOException, InterruptedException {
        if (ask("GET", "/rules/" + rule + "?matched=1&wait_ms=30000", null).get("matched").asInt() == 0)
            throw new IOException("rule " + rule + " has matched nothing for 30 s");
    }

    /** Moves the clock of the broker, and waits until all that is due has happened. */
    public void advance(Duration time) throws IOException, InterruptedException {
        ask("POST", "/clock", Map.of("advance_ms", time.toMillis()));
    }
}
