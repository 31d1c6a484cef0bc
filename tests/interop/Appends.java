import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.rest.RESTCatalog;

/** Threads that append through REST, each with a catalog of its own; prints what was acknowledged, and what failed. */
public class Appends extends Thread {
    private static String uri;
    private static String table;
    private static String kind;
    private static String declared;
    private static int appends;

    private final int number;
    private final List said = new ArrayList();

    private Appends(int number) {
        this.number = number;
    }

    public static void main(String[] arguments) throws Exception {
        uri = arguments[0];
        table = arguments[1];
        kind = arguments[2];
        declared = arguments[3];
        appends = Integer.parseInt(arguments[5]);
        Appends[] threads = new Appends[Integer.parseInt(arguments[4])];
        for (int number = 0; number < threads.length; number++) {
            threads[number] = new Appends(number);
            threads[number].start();
        }
        for (int number = 0; number < threads.length; number++) {
            threads[number].join();
            for (int line = 0; line < threads[number].said.size(); line++) {
                System.out.println(threads[number].said.get(line));
            }
        }
    }

    public void run() {
        try {
            RESTCatalog catalog = new RESTCatalog();
            Map properties = new HashMap();
            properties.put("uri", uri);
            properties.put("io-impl", "org.apache.iceberg.hadoop.HadoopFileIO");
            if (declared.length() > 0) {
                properties.put("header.X-Commit-Coord-Append", declared);
            }
            catalog.setConf(new org.apache.hadoop.conf.Configuration());
            catalog.initialize("rest", properties);
            Table found = catalog.loadTable(TableIdentifier.of(Namespace.of(new String[] {"db"}), table));
            for (int turn = 0; turn < appends; turn++) {
                append(found, "f-" + number + "-" + turn);
            }
            catalog.close();
        } catch (Exception error) {
            said.add("failed to start: " + error);
        }
    }

    private void append(Table found, String name) {
        DataFile file = DataFiles.builder(found.spec())
            .withPath(found.location() + "/data/" + name + ".parquet")
            .withFileSizeInBytes(10)
            .withRecordCount(1)
            .build();
        boolean fast = kind.equals("fast") || (kind.equals("both") && number % 2 == 0);
        AppendFiles operation = fast ? found.newFastAppend() : found.newAppend();
        try {
            operation.appendFile(file);
            operation.commit();
            said.add("acknowledged " + name);
        } catch (Exception error) {
            said.add("failed " + name + " " + error);
        }
    }
}
