import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.PartitionKey;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.hadoop.HadoopTables;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;

/** operate of large_tasks.py on Iceberg Java: the same operation on the same manifests, the same figures. */
class Large extends Worker {
    private final JsonNode spec;
    private final HadoopTables tables;
    private List prepared;

    Large(JsonNode spec) throws Exception {
        this.spec = spec;
        Configuration conf = new Configuration();
        conf.set("fs.file.impl", "PlainFiles");
        tables = new HadoopTables(conf);
        prepare(spec.get("warm").asText(), 1);
        operate(spec.get("warm").asText());
        prepare(spec.get("table").asText(), spec.get("many").asInt());
    }

    Map perform(JsonNode request) throws Exception {
        double cpu = cpu();
        long read = figure("/proc/self/io", "rchar:");
        long written = figure("/proc/self/io", "wchar:");
        double began = now();
        long files = operate(spec.get("table").asText());
        Map answer = new HashMap();
        answer.put("ms", Double.valueOf((now() - began) * 1000));
        answer.put("cpu_ms", Double.valueOf((cpu() - cpu) * 1000));
        answer.put("read_kib", Double.valueOf((figure("/proc/self/io", "rchar:") - read) / 1024.0));
        answer.put("written_kib", Double.valueOf((figure("/proc/self/io", "wchar:") - written) / 1024.0));
        answer.put("peak_mib", Double.valueOf(figure("/proc/self/status", "VmHWM:") / 1024.0));
        answer.put("files", Long.valueOf(files));
        return answer;
    }

    /** Return the files that were planned, or those of the table after the commit. */
    private long operate(String location) throws Exception {
        Table table = tables.load(location);
        String operation = spec.get("operation").asText();
        Expression partition = Expressions.equal("part", spec.get("partition").asLong());
        if (operation.equals("plan")) {
            return planned(table.newScan()).size();
        } else if (operation.equals("plan_partition")) {
            return planned((TableScan) table.newScan().filter(partition)).size();
        } else if (operation.equals("append")) {
            table.newFastAppend().appendFile(written(table, rows(table))).commit();
        } else if (operation.equals("append_files")) {
            AppendFiles append = table.newFastAppend();
            for (int number = 0; number < prepared.size(); number++) {
                append.appendFile((DataFile) prepared.get(number));
            }
            append.commit();
        } else if (operation.equals("overwrite")) {
            table.newOverwrite().overwriteByRowFilter(partition).addFile(written(table, rows(table))).commit();
        } else if (operation.equals("compact")) {
            Set old = new HashSet(planned((TableScan) table.newScan().filter(partition)));
            CloseableIterable rows = IcebergGenerics.read(table).where(partition).build();
            Set made = new HashSet();
            made.add(written(table, rows));
            rows.close();
            table.newRewrite().rewriteFiles(old, made).commit();
        } else {
            throw new IllegalArgumentException(operation);
        }
        return Long.parseLong((String) table.currentSnapshot().summary().get("total-data-files"));
    }

    private static List planned(TableScan scan) throws Exception {
        List files = new ArrayList();
        CloseableIterable tasks = scan.planFiles();
        Iterator each = tasks.iterator();
        while (each.hasNext()) {
            files.add(((FileScanTask) each.next()).file());
        }
        tasks.close();
        return files;
    }

    private Iterable rows(Table table) {
        List rows = new ArrayList();
        for (int number = 0; number < spec.get("rows").asInt(); number++) {
            Record row = GenericRecord.create(table.schema());
            row.set(0, Long.valueOf(spec.get("partition").asLong()));
            row.set(1, Long.valueOf(number));
            for (int column = 2; column < table.schema().columns().size(); column++) {
                row.set(column, Double.valueOf(number * 1.5));
            }
            rows.add(row);
        }
        return rows;
    }

    private static DataFile written(Table table, Iterable rows) throws Exception {
        Iterator each = rows.iterator();
        Record row = (Record) each.next();
        PartitionKey partition = new PartitionKey(table.spec(), table.schema());
        partition.partition(row);
        GenericFileWriterFactory factory =
            (GenericFileWriterFactory) new GenericFileWriterFactory.Builder(table).dataFileFormat(FileFormat.PARQUET).build();
        OutputFileFactory names = OutputFileFactory.builderFor(table, 0, 1).format(FileFormat.PARQUET).build();
        DataWriter writer = factory.newDataWriter(names.newOutputFile(table.spec(), partition), table.spec(), partition);
        writer.write(row);
        while (each.hasNext()) {
            writer.write(each.next());
        }
        writer.close();
        return writer.toDataFile();
    }

    /** Make the data files of append_files, of which only the metadata exists; see entry in large_tasks.py. */
    private void prepare(String location, int many) {
        prepared = new ArrayList();
        if (!spec.get("operation").asText().equals("append_files")) {
            return;
        }
        Table table = tables.load(location);
        for (int number = 0; number < many; number++) {
            long part = number % spec.get("partitions").asLong();
            GenericRecord partition = GenericRecord.create(table.spec().partitionType());
            partition.set(0, Long.valueOf(part));
            Map sizes = new HashMap();
            Map values = new HashMap();
            Map nulls = new HashMap();
            Map lower = new HashMap();
            Map upper = new HashMap();
            for (int column = 1; column <= 3; column++) {
                Integer id = Integer.valueOf(column);
                sizes.put(id, Long.valueOf(80));
                values.put(id, Long.valueOf(10));
                nulls.put(id, Long.valueOf(0));
                lower.put(id, bound(column == 1 ? part : column == 2 ? number * 10L : Double.doubleToLongBits(number)));
                upper.put(id, bound(column == 1 ? part : column == 2 ? number * 10L + 9 : Double.doubleToLongBits(number + 9)));
            }
            prepared.add(
                DataFiles.builder(table.spec())
                    .withPath(table.location() + "/data/part=" + part + "/" + number + "-new.parquet")
                    .withFormat(FileFormat.PARQUET)
                    .withPartition(partition)
                    .withFileSizeInBytes(2000)
                    .withMetrics(new Metrics(Long.valueOf(10), sizes, values, nulls, null, lower, upper))
                    .build());
        }
    }

    private static ByteBuffer bound(long bits) {
        return (ByteBuffer) ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(bits).flip();
    }

    /** Return a number that the kernel keeps of this process. Source: proc(5). */
    private static long figure(String file, String name) throws Exception {
        String text = new String(Files.readAllBytes(Paths.get(file, new String[0])), StandardCharsets.UTF_8);
        String[] words = text.substring(text.indexOf(name) + name.length()).trim().split("\\s+");
        return Long.parseLong(words[0]);
    }
}
