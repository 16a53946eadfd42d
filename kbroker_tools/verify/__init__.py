"""`kbroker-verify`: a check of any broker that speaks Kafka's protocol, while the network and the broker fail."""
