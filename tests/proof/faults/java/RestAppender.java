import java.io.File;
import java.io.FileOutputStream;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.PartitionKey;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.rest.RESTCatalog;

/**
 * A writer of the kind "java": appends through the REST server until it shall stop, and logs as OutcomeLog does.
 *
 * No lambda expressions, and casts in place of type arguments (compile_java).
 */
public class RestAppender {
    private static final long PAUSE_MS = 30;

    /** PID@HOST: the compiler knows no newer way. */
    private static final String PROCESS = ManagementFactory.getRuntimeMXBean().getName().split("@")[0];

    private final File folder;
    private final String slot;
    private final FileOutputStream log;
    private long number;

    private RestAppender(File folder, String slot, long number) throws Exception {
        this.folder = folder;
        this.slot = slot;
        this.number = number;
        File file = new File(folder, "slot-" + slot + ".log");
        boolean begun = file.length() > 0;
        log = new FileOutputStream(file, true);
        if (begun) {
            line(""); // ends a line that a kill cut off
        }
    }

    /** Arguments: folder of the cell, slot, operations tried so far, process that must live, URI, warehouse, namespace, table. */
    public static void main(String[] arguments) throws Exception {
        RestAppender writer = new RestAppender(new File(arguments[0]), arguments[1], Long.parseLong(arguments[2]));
        Table table = null;
        try {
            table = table(arguments[4], arguments[5], arguments[6], arguments[7]);
        } catch (Exception error) {
            error.printStackTrace();
            writer.line("start " + error.getClass().getSimpleName());
            Runtime.getRuntime().halt(3);
        }
        writer.work(table, new File("/proc/" + arguments[3]));
        Runtime.getRuntime().halt(0); // nobody waits for the threads of Hadoop and Iceberg
    }

    private static Table table(String uri, String warehouse, String namespace, String name) {
        RESTCatalog catalog = new RESTCatalog();
        Map properties = new HashMap();
        properties.put("uri", uri);
        properties.put("warehouse", warehouse);
        properties.put("io-impl", "org.apache.iceberg.hadoop.HadoopFileIO");
        catalog.setConf(new Configuration());
        catalog.initialize("faults", properties);
        return catalog.loadTable(TableIdentifier.of(Namespace.of(new String[] {namespace}), name));
    }

    private void work(Table table, File parent) throws Exception {
        File stop = new File(folder, "stop");
        while (!stop.exists() && parent.exists()) {
            String mark = "java." + slot + "." + PROCESS + "." + number;
            number++;
            line("try " + mark);
            try {
                line("ack " + mark + " " + append(table, mark) + " " + System.nanoTime() / 1e9);
            } catch (CommitFailedException error) {
                refused("refused", mark, error);
            } catch (Exception error) {
                refused("unknown", mark, error);
            }
            Thread.sleep(PAUSE_MS);
        }
    }

    private void refused(String word, String mark, Exception error) throws Exception {
        error.printStackTrace();
        line(word + " " + mark + " " + error.getClass().getSimpleName());
    }

    /** Append ten rows; return the id of the snapshot. */
    private long append(Table table, String mark) throws Exception {
        GenericRecord row = GenericRecord.create(table.schema());
        row.setField("part", "p" + slot);
        row.setField("mark", mark);
        row.setField("value", Long.valueOf(number));
        PartitionKey partition = new PartitionKey(table.spec(), table.schema());
        partition.partition(row);
        GenericFileWriterFactory factory = (GenericFileWriterFactory)
            new GenericFileWriterFactory.Builder(table).dataFileFormat(FileFormat.PARQUET).build();
        OutputFileFactory names = OutputFileFactory.builderFor(table, 0, number).format(FileFormat.PARQUET).build();
        DataWriter writer = factory.newDataWriter(names.newOutputFile(table.spec(), partition), table.spec(), partition);
        for (int count = 0; count < 10; count++) {
            writer.write((Record) row);
        }
        writer.close();
        AppendFiles append = Integer.parseInt(slot) % 2 == 0 ? table.newFastAppend() : table.newAppend();
        append.appendFile(writer.toDataFile());
        append.set("faults-mark", mark);
        append.commit();
        Method id = Class.forName("org.apache.iceberg.SnapshotProducer").getDeclaredMethod("snapshotId", new Class[0]);
        id.setAccessible(true);
        return ((Long) id.invoke(append, new Object[0])).longValue();
    }

    /** Have a line on disk. */
    private void line(String words) throws Exception {
        log.write((words + "\n").getBytes(StandardCharsets.UTF_8));
        log.getFD().sync();
    }
}
