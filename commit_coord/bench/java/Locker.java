import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.util.HashMap;
import java.util.Map;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.hive.HiveClientPool;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;

/** cycle_locks and hand_over of tasks.py: on Curator's mutex, or on the lock of Iceberg Java's HiveCatalog. */
class Locker extends Worker {
    private interface Lock {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    private final String task;
    private final JsonNode spec;
    private final Lock lock;

    Locker(String task, JsonNode spec) throws Exception {
        this.task = task;
        this.spec = spec;
        String uri = spec.get("uri").asText();
        lock = spec.get("manager").asText().equals("curator") ? mutex(uri) : metastoreLock(uri);
        lock.acquire();
        lock.release();
    }

    Map perform(JsonNode request) throws Exception {
        return task.equals("cycle_locks") ? cycle(request) : handOver(request.get("do").asText());
    }

    private Map cycle(JsonNode request) throws Exception {
        double end = await(request) + spec.get("seconds").asDouble();
        double cpu = cpu();
        int cycles = 0;
        while (now() < end) {
            lock.acquire();
            lock.release();
            cycles++;
        }
        Map answer = new HashMap();
        answer.put("cycles", Integer.valueOf(cycles));
        answer.put("least", Integer.valueOf(cycles));
        answer.put("most", Integer.valueOf(cycles));
        answer.put("cpu_s", Double.valueOf(cpu() - cpu));
        return answer;
    }

    private Map handOver(String what) throws Exception {
        Map answer = new HashMap();
        if (what.equals("release")) {
            answer.put("began", Double.valueOf(now()));
            lock.release();
            return answer;
        }
        lock.acquire();
        if (what.equals("wait")) {
            answer.put("granted", Double.valueOf(now()));
            lock.release();
        }
        return answer;
    }

    private static Lock mutex(String servers) {
        CuratorFramework client = CuratorFrameworkFactory.newClient(servers, new RetryOneTime(100));
        client.start();
        final InterProcessMutex mutex = new InterProcessMutex(client, "/commit-coord-bench/mutex");
        return new Lock() {
            public void acquire() throws Exception {
                mutex.acquire();
            }

            public void release() throws Exception {
                mutex.release();
            }
        };
    }

    /** Each time a new one, as for each commit. The class is Iceberg's own and not public. */
    private static Lock metastoreLock(String uri) throws Exception {
        final Configuration conf = new Configuration();
        conf.set("hive.metastore.uris", uri);
        final HiveClientPool pool = new HiveClientPool(2, conf);
        final Class type = Class.forName("org.apache.iceberg.hive.MetastoreLock");
        final Constructor made = type.getDeclaredConstructors()[0];
        made.setAccessible(true);
        return new Lock() {
            private Object held;

            public void acquire() throws Exception {
                held = made.newInstance(new Object[] {conf, pool, "bench", "bench", "t"});
                call("lock");
            }

            public void release() throws Exception {
                call("unlock");
            }

            private void call(String name) throws Exception {
                Method method = type.getMethod(name, new Class[0]);
                method.setAccessible(true);
                method.invoke(held, new Object[0]);
            }
        };
    }
}
