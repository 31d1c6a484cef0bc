import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.table.api.internal.TableEnvironmentImpl;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Flink SQL: one statement on each line of the standard input. For each, the rows as lines of text with tabs between the
 * values, and then a line that begins with "done" or "failed".
 */
public class Sql {
    public static void main(String[] arguments) throws Exception {
        TableEnvironment tables = TableEnvironmentImpl.create(EnvironmentSettings.inBatchMode());
        tables.getConfig().set("parallelism.default", "1");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String statement = input.readLine(); statement != null; statement = input.readLine()) {
            try {
                TableResult result = tables.executeSql(statement);
                if (statement.startsWith("INSERT")) {
                    result.await();
                    System.out.println("done");
                    System.out.flush();
                    continue;
                }
                CloseableIterator rows = result.collect();
                while (rows.hasNext()) {
                    Row row = (Row) rows.next();
                    StringBuilder line = new StringBuilder("row");
                    for (int position = 0; position < row.getArity(); position++) {
                        line.append('\t').append(row.getField(position));
                    }
                    System.out.println(line);
                }
                rows.close();
                System.out.println("done");
            } catch (Exception error) {
                Throwable cause = error;
                StringBuilder line = new StringBuilder("failed");
                while (cause != null) {
                    line.append('\t').append(String.valueOf(cause).replace('\n', ' '));
                    cause = cause.getCause();
                }
                System.out.println(line);
            }
            System.out.flush();
        }
    }
}
