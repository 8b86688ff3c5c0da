import io.fabric8.kubernetes.client.server.mock.KubernetesCrudDispatcher;
import io.fabric8.kubernetes.client.server.mock.KubernetesMockServer;
import io.fabric8.mockwebserver.Context;
import io.fabric8.mockwebserver.MockWebServer;
import io.fabric8.mockwebserver.dsl.HttpMethod;
import io.fabric8.mockwebserver.http.Buffer;
import io.fabric8.mockwebserver.http.MockResponse;
import io.fabric8.mockwebserver.http.RecordedRequest;
import java.net.InetAddress;
import java.util.HashMap;

/**
 * The API server that the makers of Spark's Kubernetes client test it with: it keeps objects and tells
 * watchers of them. It runs no pods. What Spark applies on the server's side is created here where it is not
 * there, which that server does not do by itself.
 *
 * <p>Says its port, and ends when its standard input does.
 */
public class MiniKubernetes {
    private static class Applying extends KubernetesCrudDispatcher {
        @Override
        public MockResponse handlePatch(RecordedRequest request) {
            // Reading it empties it.
            byte[] body = request.getBody().getBytes();
            MockResponse answer = super.handlePatch(with(request, request.method(), request.getPath(), body));
            if (answer.code() != 404 || !request.getPath().contains("fieldManager=")) {
                return answer;
            }
            String path = request.getPath().replaceFirst("/[^/]*$", "");
            return handleCreate(with(request, HttpMethod.POST, path, body));
        }

        private static RecordedRequest with(
                RecordedRequest request, HttpMethod method, String path, byte[] body) {
            return new RecordedRequest(
                request.getHttpVersion(), method, path, request.getHeaders(), new Buffer(body));
        }
    }

    public static void main(String[] arguments) throws Exception {
        KubernetesMockServer server = new KubernetesMockServer(
            new Context(), new MockWebServer(), new HashMap<>(), new Applying(), false);
        server.init(InetAddress.getLoopbackAddress(), 0);
        System.out.println(server.getPort());
        while (System.in.read() >= 0) {
            // until the test closes it
        }
        server.destroy();
        System.exit(0);
    }
}
