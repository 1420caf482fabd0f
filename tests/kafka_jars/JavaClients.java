import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;
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
            case "transaction" -> transaction(settings);
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

    private static void transaction(Properties settings) {
        settings.put("transactional.id", "java");
        settings.put("max.block.ms", "600000");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            System.out.println("initialized");
        } catch (KafkaException error) {
            System.out.println("failed " + error.getMessage());
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
