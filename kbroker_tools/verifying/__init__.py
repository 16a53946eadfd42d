"""`kbroker-verify`: a report card for any broker that speaks Kafka's protocol."""
