package kbroker;

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;

/**
 * Runs Kafka's command-line tools many times in one virtual machine. Each line of standard input is a run: a JSON array
 * with the name of a class and its arguments. The answer is a JSON line with the exit code and the output to each
 * stream.
 */
public final class ToolRuns {
    /** Thrown when a tool calls exit, so that the virtual machine does not end. */
    private static final class Exited extends Error {
        private Exited() {
            super(null, null, false, false);
        }
    }

    /**
     * The exit code of the current run. A tool that catches all exceptions around its exit would exit twice. The first
     * exit counts.
     */
    private static Integer exitCode;

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = System.out;
        PrintStream complaints = System.err;
        catchExits();
        BufferedReader runs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = runs.readLine(); line != null; line = runs.readLine()) {
            List<String> run = json.readValue(line, new TypeReference<List<String>>() { });
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
            int code;
            try {
                code = run(run);
            } finally {
                System.setOut(answers);
                System.setErr(complaints);
            }
            answers.println(json.writeValueAsString(Map.of("code", code,
                "output", output.toString(StandardCharsets.UTF_8), "errors", errors.toString(StandardCharsets.UTF_8))));
        }
    }

    /** Makes the exit of a tool end the run, but not the virtual machine. */
    static void catchExits() throws ReflectiveOperationException {
        Class<?> exit = exitClass();
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object thrower = Proxy.newProxyInstance(ToolRuns.class.getClassLoader(), new Class<?>[] {procedure},
            (proxy, method, codeAndMessage) -> {
                exitCode = exitCode == null ? (Integer) codeAndMessage[0] : exitCode;
                throw new Exited();
            });
        exit.getMethod("setExitProcedure", procedure).invoke(null, thrower);
    }

    /** Returns the class by which Kafka's tools exit. Kafka 4.4 moved it. */
    private static Class<?> exitClass() throws ClassNotFoundException {
        String utils = "org.apache.kafka.common.utils.";
        try {
            return Class.forName(utils + "internals.Exit");
        } catch (ClassNotFoundException beforeTheMove) {
            return Class.forName(utils + "Exit");
        }
    }

    /** Runs a tool, given as the name of its class and its arguments. Returns its exit code. */
    static int run(List<String> run) throws ReflectiveOperationException {
        exitCode = null;
        String[] arguments = run.subList(1, run.size()).toArray(new String[0]);
        try {
            Class.forName(run.get(0)).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException thrown) {
            if (thrown.getCause() instanceof Exited) {
                return exitCode;
            }
            // The virtual machine would print an uncaught exception, and exit with 1.
            thrown.getCause().printStackTrace(System.err);
            return 1;
        }
    }
}
