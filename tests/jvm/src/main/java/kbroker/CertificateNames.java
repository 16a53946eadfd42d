package kbroker;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Prints names of certificates as Java does, and maps them to user names as Kafka does. Each argument is hexadecimal:
 * {@code NAME} is a name in DER, and {@code RULES:NAME} are mapping rules and a name as text. The output is a JSON
 * array with a text for each argument, or null if Java or Kafka refuses the argument.
 */
public final class CertificateNames {
    public static void main(String[] arguments) throws Exception {
        List<String> found = new ArrayList<>();
        for (String argument : arguments) {
            int colon = argument.indexOf(':');
            try {
                if (colon < 0) {
                    found.add(new X500Principal(HexFormat.of().parseHex(argument)).getName());
                } else {
                    found.add(SslPrincipalMapper.fromRules(text(argument.substring(0, colon)))
                        .getName(text(argument.substring(colon + 1))));
                }
            } catch (Exception refused) {
                found.add(null);
            }
        }
        System.out.println(new ObjectMapper().writeValueAsString(found));
    }

    private static String text(String hex) {
        return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
    }

    private CertificateNames() { }
}
