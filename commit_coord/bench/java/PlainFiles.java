import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/** Hadoop's local files, without a second file of checksums and without a process, chmod, for each of them. */
public class PlainFiles extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) {}
}
