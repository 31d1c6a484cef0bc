import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.hive.HiveCatalog;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;

/** append_for_a_while of tasks.py on Iceberg Java's HiveCatalog or RESTCatalog: the same rows in real data files, the same figures. */
class Appender extends Worker {
    /** More than in Python: the JVM compiles what is used often. */
    private static final int WARM_APPENDS = 10;

    private final JsonNode spec;
    private final Table table;
    private long attempts;
    private int files;

    Appender(JsonNode spec) throws Exception {
        this.spec = spec;
        Configuration conf = new Configuration();
        Iterator settings = texts(spec.get("conf")).entrySet().iterator();
        while (settings.hasNext()) {
            Map.Entry setting = (Map.Entry) settings.next();
            conf.set((String) setting.getKey(), (String) setting.getValue());
        }
        Catalog catalog = spec.has("rest") ? served(conf) : ofMetastore(conf);
        Namespace namespace = Namespace.of(new String[] {spec.get("namespace").asText()});
        table = catalog.loadTable(TableIdentifier.of(namespace, spec.at("/tables/0").asText()));
        TableIdentifier scratch = TableIdentifier.of(namespace, spec.get("scratch").asText());
        Table warm = catalog.createTable(scratch, new Schema(table.schema().columns()), table.spec(), table.properties());
        for (int number = 0; number < WARM_APPENDS; number++) {
            append(warm);
        }
        attempts = 0;
    }

    private Catalog ofMetastore(Configuration conf) {
        HiveCatalog catalog = new HiveCatalog() {
            public TableOperations newTableOps(TableIdentifier name) {
                return counted(super.newTableOps(name));
            }
        };
        catalog.setConf(conf);
        Map properties = new HashMap();
        properties.put("uri", spec.get("catalog").get("uri").asText());
        properties.put("warehouse", spec.get("catalog").get("warehouse").asText());
        catalog.initialize("bench", properties);
        return catalog;
    }

    /** Attempts to commit are counted by the server. */
    private Catalog served(Configuration conf) {
        RESTCatalog catalog = new RESTCatalog();
        catalog.setConf(conf);
        Map properties = texts(spec.get("rest"));
        properties.put("io-impl", "org.apache.iceberg.hadoop.HadoopFileIO");
        catalog.initialize("bench", properties);
        return catalog;
    }

    private static Map texts(JsonNode object) {
        Map found = new HashMap();
        Iterator fields = object.fields();
        while (fields.hasNext()) {
            Map.Entry field = (Map.Entry) fields.next();
            found.put(field.getKey(), ((JsonNode) field.getValue()).asText());
        }
        return found;
    }

    Map perform(JsonNode request) throws Exception {
        double end = await(request) + spec.get("seconds").asDouble();
        double cpu = cpu();
        List acknowledged = new ArrayList();
        List failed = new ArrayList();
        Map errors = new HashMap();
        int inTime = 0;
        double began;
        while ((began = now()) < end) {
            String error = attempt();
            double ended = now();
            if (error == null) {
                acknowledged.add(Double.valueOf((ended - began) * 1000));
                inTime += ended <= end ? 1 : 0;
            } else {
                failed.add(Double.valueOf((ended - began) * 1000));
                Object before = errors.get(error);
                errors.put(error, Integer.valueOf(before == null ? 1 : ((Integer) before).intValue() + 1));
            }
        }
        Map answer = new HashMap();
        answer.put("acknowledged", Integer.valueOf(acknowledged.size()));
        answer.put("in_time", Integer.valueOf(inTime));
        answer.put("acknowledged_ms", acknowledged);
        answer.put("failed_ms", failed);
        answer.put("errors", errors);
        answer.put("cpu_s", Double.valueOf(cpu() - cpu));
        answer.put("attempts", Long.valueOf(attempts));
        return answer;
    }

    /** Append once; return the name of the error, null when it was acknowledged. */
    private String attempt() {
        try {
            append(table);
            return null;
        } catch (Exception error) {
            try {
                table.refresh();
            } catch (Exception second) {
                return error.getClass().getSimpleName() + ", then " + second.getClass().getSimpleName();
            }
            return error.getClass().getSimpleName();
        }
    }

    private void append(Table to) throws Exception {
        GenericFileWriterFactory factory =
            (GenericFileWriterFactory) new GenericFileWriterFactory.Builder(to).dataFileFormat(FileFormat.PARQUET).build();
        OutputFileFactory names = OutputFileFactory.builderFor(to, 0, ++files).format(FileFormat.PARQUET).build();
        DataWriter writer = factory.newDataWriter(names.newOutputFile(), to.spec(), null);
        for (long number = 0; number < spec.get("rows").asLong(); number++) {
            Record row = GenericRecord.create(to.schema());
            row.setField("id", Long.valueOf(number));
            row.setField("name", "row " + number);
            row.setField("value", Double.valueOf(number * 1.5));
            writer.write(row);
        }
        writer.close();
        to.newFastAppend().appendFile(writer.toDataFile()).commit();
    }

    /** Count the attempts to commit on their way through. */
    private TableOperations counted(final TableOperations operations) {
        InvocationHandler counting = new InvocationHandler() {
            public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
                if (method.getName().equals("commit")) {
                    attempts++;
                }
                try {
                    return method.invoke(operations, arguments);
                } catch (InvocationTargetException error) {
                    throw error.getCause();
                }
            }
        };
        ClassLoader loader = TableOperations.class.getClassLoader();
        return (TableOperations) Proxy.newProxyInstance(loader, new Class[] {TableOperations.class}, counting);
    }
}
