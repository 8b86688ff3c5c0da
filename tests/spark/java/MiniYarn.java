import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * A resource manager and one node manager in this process, whose containers are processes of this machine.
 *
 * <p>Writes the configuration for clients to the folder that it is given, says "ready", and ends when its
 * standard input does.
 */
public class MiniYarn {
    public static void main(String[] arguments) throws Exception {
        File folder = new File(arguments[0]);
        Configuration wanted = new YarnConfiguration();
        wanted.set("fs.defaultFS", "file:///");
        wanted.set("hadoop.tmp.dir", new File(folder, "hadoop").getPath());
        wanted.set("yarn.resourcemanager.scheduler.class",
            "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler");
        wanted.set("yarn.scheduler.capacity.root.queues", "default");
        wanted.set("yarn.scheduler.capacity.root.default.capacity", "100");
        wanted.setInt("yarn.scheduler.minimum-allocation-mb", 256);
        wanted.setInt("yarn.minicluster.yarn.nodemanager.resource.memory-mb", 6144);
        wanted.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
        wanted.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        // An application master may ask for all of it.
        wanted.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
        MiniYARNCluster cluster = new MiniYARNCluster("tidelog", 1, 1, 1);
        cluster.init(wanted);
        cluster.start();
        if (!cluster.waitForNodeManagersToConnect(60_000)) {
            throw new IllegalStateException("the node manager did not register");
        }
        for (String name : List.of("core-site.xml", "yarn-site.xml")) {
            try (OutputStream file = new FileOutputStream(new File(folder, name))) {
                cluster.getConfig().writeXml(file);
            }
        }
        System.out.println("ready");
        while (System.in.read() >= 0) {
            // until the test closes it
        }
        cluster.stop();
        System.exit(0);
    }
}
