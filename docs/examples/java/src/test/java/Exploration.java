import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;

/** Kills the broker at each step of a scenario. */
public class Exploration {
    /** The facts that select a step among all. */
    private static final List<String> FACTS =
        List.of("api", "client_id", "topic", "partition", "group", "transactional_id", "occurrence");

    public interface Scenario {
        void run(Kbroker broker) throws Exception;
    }

    /** Runs a scenario once, then again for each chosen step that it reached, with the broker killed at that step. */
    public static int explore(Scenario scenario, Predicate<JsonNode> isChosen) throws Exception {
        List<JsonNode> chosen = new ArrayList<>();
        try (var broker = new Kbroker()) {
            scenario.run(broker);
            for (JsonNode step : broker.ask("GET", "/steps", null).get("steps"))
                if (isChosen.test(step)) chosen.add(step);
        }
        for (JsonNode step : chosen) {
            Map<String, JsonNode> facts = new HashMap<>();
            FACTS.stream().filter(step::hasNonNull).forEach(name -> facts.put(name, step.get(name)));
            try (var broker = new Kbroker()) {
                broker.rule(step.get("point").asText(), "kill", facts);
                broker.keepRunning();
                scenario.run(broker);
            } catch (Exception | AssertionError error) {
                throw new AssertionError("with the broker killed at " + step, error);
            }
        }
        return chosen.size();
    }
}
