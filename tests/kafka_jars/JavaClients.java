import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What Kafka's Java clients see, one line a fact, for test_kafka_java_clients.py. Run from its source: java JavaClients.java */
public class JavaClients {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[1]);
        switch (arguments[0]) {
            case "pattern" -> pattern(settings, Integer.parseInt(arguments[2]));
            case "transaction" -> transaction(settings, Integer.parseInt(arguments[2]));
            case "administration" -> administration(settings);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static void pattern(Properties settings, int count) {
        settings.put("group.id", "java");
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(new SubscriptionPattern("pattern-.*"));
            List<String> values = new ArrayList<>();
            long end = System.currentTimeMillis() + 30_000;
            while (values.size() < count && System.currentTimeMillis() < end) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
            }
            Object requests = consumer.metrics().values().stream()
                .filter(metric -> metric.metricName().name().equals("request-total"))
                .filter(metric -> metric.metricName().group().equals("consumer-metrics"))
                .findFirst().orElseThrow().metricValue();
            System.out.println("values " + String.join(",", values));
            System.out.println("partitions " + consumer.assignment().size());
            System.out.println("requests " + ((Double) requests).intValue());
        }
    }

    /** Rows 0 to count - 1 from one topic to two others, some transactions aborted and done again. */
    private static void transaction(Properties settings, int count) throws Exception {
        Properties writing = new Properties();
        writing.putAll(settings);
        writing.put("transactional.id", "java");
        Properties reading = new Properties();
        reading.putAll(settings);
        reading.put("group.id", "java-transactions");
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        reading.put("max.poll.records", "50");
        int done = 0;
        int aborted = 0;
        try (var producer = new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
             var consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of("java-in"));
            long end = System.currentTimeMillis() + 60_000;
            for (int turn = 0; done < count && System.currentTimeMillis() < end; ) {
                var records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (var record : records) {
                    int row = Integer.parseInt(record.value());
                    producer.send(new ProducerRecord<>("java-out-" + row % 2, record.value()));
                    offsets.put(new TopicPartition(record.topic(), record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (turn++ % 4 == 1) {
                    producer.abortTransaction();
                    aborted++;
                    consumer.committed(consumer.assignment()).forEach((partition, offset) ->
                        consumer.seek(partition, offset == null ? 0 : offset.offset()));
                } else {
                    producer.commitTransaction();
                    done += records.count();
                }
            }
        }
        System.out.println("done " + done);
        System.out.println("aborted " + aborted);
        List<String> rows = new ArrayList<>();
        reading.put("group.id", "java-judge");
        try (var consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("java-out-0", "java-out-1"));
            long end = System.currentTimeMillis() + 20_000;
            while (rows.size() < count && System.currentTimeMillis() < end) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> rows.add(record.value()));
            }
            consumer.poll(Duration.ofMillis(1_000)).forEach(record -> rows.add(record.value()));
        }
        rows.sort(Comparator.comparing(Integer::parseInt));
        System.out.println("rows " + String.join(",", rows));
        try (Admin admin = Admin.create(settings)) {
            var described = admin.describeTransactions(List.of("java")).all().get().get("java");
            System.out.println("state " + described.state());
            System.out.println("epochs " + described.producerEpoch());
            System.out.println("listed " + admin.listTransactions().all().get().size());
        }
    }

    private static void administration(Properties settings) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            try {
                admin.describeAcls(AclBindingFilter.ANY).values().get();
            } catch (ExecutionException error) {
                System.out.println("acls " + error.getCause().getClass().getSimpleName());
            }
            System.out.println("quotas " + admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().size());
            System.out.println("transactions " + admin.listTransactions().all().get().size());
        }
    }
}
