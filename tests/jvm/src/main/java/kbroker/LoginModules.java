package kbroker;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.config.SaslConfigs;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

/**
 * Reads values of sasl.jaas.config as Kafka does. Each input line is a value, as a JSON string. The output line for it
 * has the name, the flag and the options of the login module, or null if Kafka refuses the value.
 */
public final class LoginModules {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader texts = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = texts.readLine(); line != null; line = texts.readLine()) {
            String text = json.readValue(line, String.class);
            List<Object> found;
            try {
                AppConfigurationEntry entry = JaasContext.loadClientContext(
                    Map.of(SaslConfigs.SASL_JAAS_CONFIG, new Password(text))).configurationEntries().get(0);
                found = Arrays.asList(entry.getLoginModuleName(), entry.getControlFlag().toString(), entry.getOptions());
            } catch (RuntimeException refusal) {
                found = null;
            }
            answers.println(json.writeValueAsString(found));
        }
    }

    private LoginModules() {
    }
}
