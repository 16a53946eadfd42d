"""Creates a topic on the broker of the page's example with a fixed port."""
from confluent_kafka.admin import AdminClient, NewTopic
from fixed_port_container import broker

with broker:
    admin = AdminClient({'bootstrap.servers': 'localhost:9092'})
    admin.create_topics([NewTopic('kept', 1)])['kept'].result()
    print('read', *admin.list_topics(timeout=60).topics)
