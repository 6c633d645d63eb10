// jnats, as tests/clients/protocol.py says. Build: mvn -q package dependency:copy-dependencies
import io.nats.client.Connection;
import io.nats.client.JetStream;
import io.nats.client.JetStreamApiException;
import io.nats.client.Nats;
import io.nats.client.Options;
import io.nats.client.PublishOptions;
import io.nats.client.api.PublishAck;
import io.nats.client.impl.Headers;
import io.nats.client.support.JsonParser;
import io.nats.client.support.JsonValue;
import io.nats.client.support.JsonValueUtils;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

public class Client {
    private static JetStream js;

    public static void main(String[] arguments) throws Exception {
        Options options = new Options.Builder().server(arguments[0]).maxReconnects(-1).build();
        Connection connection = Nats.connect(options);
        js = connection.jetStream();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        Steady steady = null;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, JsonValue> asked = JsonParser.parse(line).map;
            JsonValue said = JsonValueUtils.mapBuilder().toJsonValue();
            switch (asked.get("op").string) {
                case "publish" -> said = publish(asked, false).join();
                case "many" -> said = many(asked);
                case "steady" -> steady = new Steady(asked);
                case "stop" -> said = steady.stop();
            }
            System.out.println(said.toJson());
        }
        connection.close();
    }

    private static JsonValue failure(Throwable error) {
        Throwable cause = error;
        while (cause.getCause() != null && !(cause instanceof JetStreamApiException)) {
            cause = cause.getCause();
        }
        if (cause instanceof JetStreamApiException refused) {
            return JsonValueUtils.mapBuilder()
                .put("code", refused.getErrorCode())
                .put("err_code", refused.getApiErrorCode())
                .put("description", refused.getErrorDescription())
                .toJsonValue();
        }
        return JsonValueUtils.mapBuilder().put("failed", cause.toString()).toJsonValue();
    }

    /** One, with its ack; ``waits``: by the call that waits for it. */
    private static CompletableFuture<JsonValue> publish(Map<String, JsonValue> asked, boolean waits) {
        Headers headers = new Headers();
        if (asked.containsKey("headers")) {
            asked.get("headers").map.forEach((name, value) -> headers.put(name, value.string));
        }
        PublishOptions.Builder options = new PublishOptions.Builder();
        if (asked.containsKey("msg_id")) {
            options.messageId(asked.get("msg_id").string);
        }
        if (asked.containsKey("expect_stream")) {
            options.expectedStream(asked.get("expect_stream").string);
        }
        if (asked.containsKey("expect_last")) {
            options.expectedLastSequence(asked.get("expect_last").number.longValue());
        }
        if (asked.containsKey("expect_last_of_subject")) {
            options.expectedLastSubjectSequence(asked.get("expect_last_of_subject").number.longValue());
        }
        if (asked.containsKey("expect_last_msg_id")) {
            options.expectedLastMsgId(asked.get("expect_last_msg_id").string);
        }
        try {
            if (waits) {
                byte[] value = asked.get("value").string.getBytes();
                return CompletableFuture.completedFuture(read(js.publish(asked.get("subject").string, headers, value, options.build())));
            }
            return js.publishAsync(asked.get("subject").string, headers, asked.get("value").string.getBytes(), options.build())
                .handle((ack, error) -> error == null ? read(ack) : failure(error));
        } catch (IOException | JetStreamApiException | RuntimeException error) {
            return CompletableFuture.completedFuture(failure(error));
        }
    }

    private static JsonValue read(PublishAck ack) {
        return JsonValueUtils.mapBuilder()
            .put("stream", ack.getStream())
            .put("seq", ack.getSeqno())
            .put("duplicate", ack.isDuplicate())
            .toJsonValue();
    }

    private static JsonValue many(Map<String, JsonValue> asked) {
        List<CompletableFuture<PublishAck>> coming = new ArrayList<>();
        for (int number = 0; number < asked.get("count").i; number++) {
            coming.add(js.publishAsync(asked.get("subject").string, String.valueOf(number).getBytes()));
        }
        List<JsonValue> sequences = new ArrayList<>();
        List<JsonValue> failed = new ArrayList<>();
        for (CompletableFuture<PublishAck> one : coming) {
            try {
                sequences.add(new JsonValue(one.join().getSeqno()));
            } catch (CompletionException error) {
                failed.add(new JsonValue(error.toString()));
            }
        }
        return JsonValueUtils.mapBuilder().put("seqs", new JsonValue(sequences)).put("failed", new JsonValue(failed)).toJsonValue();
    }

    /** Publishes at a rate, each without waiting for the others, until it is stopped. */
    private static final class Steady {
        private final ScheduledExecutorService clock = Executors.newSingleThreadScheduledExecutor();
        private final List<CompletableFuture<?>> waiting = new ArrayList<>();
        private final List<JsonValue> acked = new ArrayList<>();
        private final List<JsonValue> failed = new ArrayList<>();
        private final Map<String, JsonValue> asked;

        Steady(Map<String, JsonValue> asked) {
            this.asked = asked;
            clock.scheduleAtFixedRate(this::one, 0, 1_000_000L / asked.get("rate").i, TimeUnit.MICROSECONDS);
        }

        private void one() {
            int number = waiting.size();
            JsonValueUtils.MapBuilder one = JsonValueUtils.mapBuilder()
                .put("subject", asked.get("subject"))
                .put("value", String.valueOf(number));
            if (asked.containsKey("msg_ids") && asked.get("msg_ids").bool) {
                one.put("msg_id", asked.get("value").string + number);
            }
            waiting.add(publish(one.toJsonValue().map, asked.get("how").string.equals("one by one")).thenAccept(said -> note(number, said)));
        }

        private synchronized void note(int number, JsonValue said) {
            JsonValue seq = said.map.get("seq");
            List<JsonValue> where = seq == null ? failed : acked;
            where.add(new JsonValue(List.of(new JsonValue(number), seq == null ? new JsonValue(said.toJson()) : seq)));
        }

        JsonValue stop() throws InterruptedException {
            clock.shutdown();
            clock.awaitTermination(60, TimeUnit.SECONDS);
            CompletableFuture.allOf(waiting.toArray(new CompletableFuture[0])).join();
            return JsonValueUtils.mapBuilder()
                .put("sent", waiting.size())
                .put("acked", new JsonValue(acked))
                .put("failed", new JsonValue(failed))
                .toJsonValue();
        }
    }
}
