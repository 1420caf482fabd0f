package penstock;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.DelegatingCatalogExtension;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.catalog.TruncatableTable;
import org.apache.spark.sql.connector.catalog.V1Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Utils;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Spark's session catalog, in which a table of a Python data source knows where it is.
 *
 * Spark passes neither the location of a table nor its partitions to Python sources, and cannot truncate their tables.
 * This class does nothing else. Spark's own compiler of generated code (Janino) compiles it: no lambdas, no inference.
 */
public class TableCatalog extends DelegatingCatalogExtension {
    static final String FORMAT = "penstock-table";

    public Table loadTable(Identifier ident) throws NoSuchTableException {
        Table found = super.loadTable(ident);
        if (!(found instanceof V1Table)) {
            return found;
        }
        V1Table plain = (V1Table) found;
        Object provider = plain.properties().get("provider");
        if (FORMAT.equals(provider)) {
            return new LocatedTable(plain);
        }
        if (provider == null) {
            return found;
        }
        // As Spark does where nobody extends its catalog.
        scala.Option known = DataSourceV2Utils.getTableProvider((String) provider, SQLConf.get());
        if (known.isEmpty() || !(known.get() instanceof PythonDataSourceV2)) {
            return found;
        }
        return ((TableProvider) known.get()).getTable(plain.schema(), plain.partitioning(), plain.properties());
    }
}

class LocatedTable implements Table, SupportsRead, SupportsWrite, TruncatableTable {
    private final V1Table plain;

    LocatedTable(V1Table plain) {
        this.plain = plain;
    }

    public String name() {
        return this.plain.name();
    }

    public StructType schema() {
        return this.plain.schema();
    }

    public Transform[] partitioning() {
        return this.plain.partitioning();
    }

    public Map<String, String> properties() {
        return this.plain.properties();
    }

    public Set<TableCapability> capabilities() {
        return EnumSet.of(
            TableCapability.BATCH_READ,
            TableCapability.BATCH_WRITE,
            TableCapability.MICRO_BATCH_READ,
            TableCapability.STREAMING_WRITE,
            TableCapability.TRUNCATE);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        Map<String, String> known = new HashMap<String, String>(options);
        known.put("path", this.location());
        if (!known.containsKey("ignoredeletes")) {
            // A full refresh empties a table. Flows that read it get all its rows again.
            known.put("ignoredeletes", "true");
        }
        return this.python().newScanBuilder(new CaseInsensitiveStringMap(known));
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        Map<String, String> known = new HashMap<String, String>(info.options());
        StringBuilder columns = new StringBuilder();
        Transform[] partitions = this.plain.partitioning();
        for (int i = 0; i < partitions.length; i++) {
            if ("identity".equals(partitions[i].name())) { // clustering and buckets are hints
                columns.append(columns.length() == 0 ? "" : ",").append(partitions[i].references()[0].fieldNames()[0]);
            }
        }
        known.put("path", this.location());
        known.put("partitionby", columns.toString());
        // Options are in lower case here. The catalog has accepted the columns before. Runs of the pipeline look after old versions.
        known.put("mergeschema", "true");
        known.put("keep", "forever");
        return this.python().newWriteBuilder(new LocatedWrite(info, new CaseInsensitiveStringMap(known)));
    }

    /** Only asks for it: the next write replaces all rows in one version, and readers see the old ones until then. */
    public boolean truncateTable() {
        Path directory = Paths.get(new org.apache.hadoop.fs.Path(this.location()).toUri().getPath());
        String[] entries = directory.resolve("_delta_log").toFile().list();
        boolean isThere = false;
        for (int i = 0; entries != null && i < entries.length; i++) {
            isThere |= entries[i].endsWith(".json") || entries[i].endsWith(".checkpoint.parquet");
        }
        if (!isThere) { // or it was killed before its first version
            return true;
        }
        Path asked = directory.resolve("_truncate_asked");
        try {
            long before = 0;
            if (Files.exists(asked)) {
                before = Long.parseLong(new String(Files.readAllBytes(asked), StandardCharsets.UTF_8).trim());
            }
            long now = Math.max(before + 1, System.currentTimeMillis());
            Path aside = directory.resolve("_truncate_asked.tmp");
            Files.write(
                aside,
                Long.toString(now).getBytes(StandardCharsets.UTF_8),
                StandardOpenOption.CREATE,
                StandardOpenOption.TRUNCATE_EXISTING,
                StandardOpenOption.WRITE,
                StandardOpenOption.SYNC);
            Files.move(aside, asked, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
            return true;
        } catch (IOException error) {
            throw new RuntimeException("table " + this.name() + " cannot be emptied: " + error, error);
        }
    }

    private String location() {
        return (String) this.plain.properties().get("location");
    }

    /** A new one for each use: it remembers the options of the first one. */
    private PythonTable python() {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(TableCatalog.FORMAT);
        return new PythonTable(source, TableCatalog.FORMAT, this.plain.schema());
    }
}

class LocatedWrite implements LogicalWriteInfo {
    private final LogicalWriteInfo info;
    private final CaseInsensitiveStringMap options;

    LocatedWrite(LogicalWriteInfo info, CaseInsensitiveStringMap options) {
        this.info = info;
        this.options = options;
    }

    public CaseInsensitiveStringMap options() {
        return this.options;
    }

    public String queryId() {
        return this.info.queryId();
    }

    public StructType schema() {
        return this.info.schema();
    }

    public Optional<StructType> rowIdSchema() {
        return this.info.rowIdSchema();
    }

    public Optional<StructType> metadataSchema() {
        return this.info.metadataSchema();
    }
}
