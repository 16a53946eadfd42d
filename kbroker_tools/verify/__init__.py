"""`kbroker-verify`. It checks any broker that speaks Kafka's protocol, while it disturbs the network and the broker."""
