import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;

/**
 * A worker of the bench that runs in Java; it speaks as worker.py does.
 *
 * Here and in the other classes: no lambda expressions, and casts in place of type arguments (compile_java).
 */
abstract class Worker {
    /** Answer one request. */
    abstract Map perform(JsonNode request) throws Exception;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // whatever libraries print must not look like an answer
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ObjectMapper json = new ObjectMapper();
        JsonNode first = json.readTree(requests.readLine());
        Worker worker = prepare(first.get("task").asText(), first.get("spec"));
        answers.println("\"ready\"");
        String request;
        while ((request = requests.readLine()) != null) {
            answers.println(json.writeValueAsString(worker.perform(json.readTree(request))));
        }
        System.exit(0); // nobody waits for the threads of Hadoop and Iceberg
    }

    private static Worker prepare(String task, JsonNode spec) throws Exception {
        if (task.equals("large_tasks.operate")) {
            return new Large(spec);
        }
        return task.equals("append_for_a_while") ? (Worker) new Appender(spec) : (Worker) new Locker(task, spec);
    }

    /** Sleep until the start that a request names; return it. */
    static double await(JsonNode request) throws Exception {
        double start = request.get("start").asDouble();
        while (now() < start) {
            Thread.sleep(1);
        }
        return start;
    }

    /** Return the seconds of the clock that is Python's time.monotonic. */
    static double now() {
        return System.nanoTime() / 1e9;
    }

    /** Return the seconds of CPU that this process has used. */
    static double cpu() {
        com.sun.management.OperatingSystemMXBean system =
            (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }
}
