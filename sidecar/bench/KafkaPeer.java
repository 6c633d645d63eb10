import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own clients, run from this source by {@code java}. The producer is acks=all and idempotent as it comes, at its best settings for many records (batches of up to 1 MB, 5 ms of lingering).
 * {@code create SERVERS TOPIC FLUSH_MESSAGES}: a topic of one partition on three brokers, two of which must have a record; FLUSH_MESSAGES 1: flushed
 * before it is acknowledged. {@code produce SERVERS TOPIC SECONDS SIZE WARM_SECONDS} prints "go" when it is warm, then a line of JSON: acked, took_s, cpu_s of this process. {@code consume SERVERS
 * TOPIC SECONDS WARM_SECONDS}: the same of records that were read from the first one on; at the end it begins anew.
 */
public final class KafkaPeer {
    public static void main(String[] given) throws Exception {
        if (given[0].equals("create")) {
            create(given[1], given[2], given[3]);
        } else if (given[0].equals("consume")) {
            consume(given[1], given[2], Double.parseDouble(given[3]), Double.parseDouble(given[4]));
        } else {
            produce(given[1], given[2], Double.parseDouble(given[3]), Integer.parseInt(given[4]), Double.parseDouble(given[5]));
        }
    }

    private static void create(String servers, String name, String flushMessages) throws Exception {
        var topic = new NewTopic(name, 1, (short) 3);
        topic.configs(Map.of("min.insync.replicas", "2", "flush.messages", flushMessages, "max.message.bytes", "2097152"));
        try (var admin = Admin.create(Map.<String, Object>of("bootstrap.servers", servers))) {
            admin.createTopics(List.of(topic)).all().get();
        }
    }

    private static double cpu() {
        var bean = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return bean.getProcessCpuTime() / 1e9;
    }

    private static void produce(String servers, String topic, double seconds, int size, double warm) throws Exception {
        var settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("acks", "all");
        settings.put("linger.ms", "5");
        settings.put("batch.size", "1000000");
        settings.put("max.request.size", "2000000");
        settings.put("buffer.memory", "67108864");
        var value = new byte[size];
        Arrays.fill(value, (byte) 'x');
        var failed = new AtomicReference<Exception>();
        try (var producer = new KafkaProducer<byte[], byte[]>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            send(producer, topic, value, warm, failed);
            System.out.println("go");
            double before = cpu();
            long began = System.nanoTime();
            long sent = send(producer, topic, value, seconds, failed);
            double took = (System.nanoTime() - began) / 1e9;
            say(sent, took, cpu() - before);
        }
    }

    private static void say(long records, double took, double cpu) {
        System.out.printf(java.util.Locale.ROOT, "{\"acked\": %d, \"took_s\": %.6f, \"cpu_s\": %.6f}%n", records, took, cpu);
    }

    private static void consume(String servers, String topic, double seconds, double warm) {
        var settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("max.poll.records", "5000");
        settings.put("enable.auto.commit", "false");
        var all = List.of(new TopicPartition(topic, 0));
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(all);
            long end = consumer.endOffsets(all).get(all.get(0));
            read(consumer, all, end, warm);
            System.out.println("go");
            double before = cpu();
            long began = System.nanoTime();
            long count = read(consumer, all, end, seconds);
            say(count, (System.nanoTime() - began) / 1e9, cpu() - before);
        }
    }

    private static long read(KafkaConsumer<byte[], byte[]> consumer, List<TopicPartition> all, long end, double seconds) {
        long until = System.nanoTime() + (long) (seconds * 1e9);
        long count = 0;
        long bytes = 0;
        long next = end;
        while (System.nanoTime() < until) {
            if (next >= end) {
                consumer.seekToBeginning(all);
                next = 0;
            }
            for (var record : consumer.poll(Duration.ofMillis(100))) {
                count++;
                bytes += record.value().length;
                next = record.offset() + 1;
            }
        }
        if (count > 0 && bytes == 0) {
            throw new IllegalStateException("records without values");
        }
        return count;
    }

    private static long send(
            KafkaProducer<byte[], byte[]> producer, String topic, byte[] value, double seconds, AtomicReference<Exception> failed) throws Exception {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        long sent = 0;
        while (System.nanoTime() < end) {
            for (int i = 0; i < 500; i++) {
                producer.send(new ProducerRecord<>(topic, value), (data, error) -> {
                    if (error != null) {
                        failed.compareAndSet(null, error);
                    }
                });
            }
            sent += 500;
        }
        producer.flush();
        if (failed.get() != null) {
            throw failed.get();
        }
        return sent;
    }
}
