"""The releases of Apache Kafka whose texts the tools print."""

RELEASES = ('4.2', '4.3', '4.4')
NEWEST = RELEASES[-1]
