"""Real clients that work on a compared broker, with the figures that their users see. The name of a figure contains its
unit."""
from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable

from broker import resident_mb
from load_generator import LoadError
from peer_brokers import Site, kafka_tool
from slice_clients import RECORD_BYTES, Confluent, Slice, cpu_s

TOOL_LIMIT_S = 300
RECORDS_S, ROUND_TRIPS_S = 300_000, 2500  # so that the work roughly fills the time


def producer_performance(site: Site, topic: str, seconds: float) -> dict[str, float]:
    """Run Java's ProducerPerformance with acks=all, at full speed. A third of the records are the tool's own warm-up,
    which the CPU time includes.
    """
    counted = int(seconds * RECORDS_S)
    records, warm_up = counted * 3 // 2, counted // 2
    began_s = cpu_s(site.broker.pid)
    said = run_tool('ProducerPerformance', '--bootstrap-server', site.broker.address, '--topic', topic, '--num-records',
                    str(records), '--warmup-records', str(warm_up), '--record-size', str(RECORD_BYTES), '--throughput',
                    '-1', '--command-property', 'acks=all')
    broker_s = cpu_s(site.broker.pid) - began_s
    found = re.findall(r'([\d.]+) records/sec.* ([\d]+) ms 50th, \d+ ms 95th, (\d+) ms 99th, (\d+) ms 99.9th', said)
    if not found:
        raise LoadError(f'ProducerPerformance printed no rate:\n{said[-2000:]}')
    rate, *percentiles_ms = map(float, found[-1])
    return {'rate': rate, 'cpu_us': broker_s / records * 1e6, **percentiles_us(percentiles_ms),
            'rss_mb': resident_mb(site.broker.pid)}


def end_to_end_latency(site: Site, topic: str, seconds: float) -> dict[str, float]:
    """Run Java's EndToEndLatency: one record at a time, from producer through broker to consumer."""
    count = int(seconds * ROUND_TRIPS_S)
    began_s = cpu_s(site.broker.pid)
    said = run_tool('EndToEndLatency', '--bootstrap-server', site.broker.address, '--topic', topic, '--num-records',
                    str(count), '--producer-acks', 'all', '--record-size', str(RECORD_BYTES))
    broker_s = cpu_s(site.broker.pid) - began_s
    average = re.search(r'Avg latency: ([\d.]+) ms', said)
    percentiles = re.search(r'50th = (\d+), 99th = (\d+), 99.9th = (\d+)', said)
    if not average or not percentiles:
        raise LoadError(f'EndToEndLatency printed no latency:\n{said[-2000:]}')
    return {'rate': 1e3 / float(average[1]), 'cpu_us': broker_s / count * 1e6,
            **percentiles_us(map(float, percentiles.groups()))}


def run_tool(name: str, *arguments: str) -> str:
    """Run one of Kafka's tools and return its output. Raise LoadError if it fails."""
    done = subprocess.run(kafka_tool(name, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=TOOL_LIMIT_S, check=False)
    if done.returncode:
        raise LoadError(f'{name} failed with code {done.returncode}:\n{done.stdout[-2000:]}')
    return done.stdout


def percentiles_us(found_ms: Iterable[float]) -> dict[str, float]:
    """Return {name: microseconds} for the median, the 99th and the 99.9th percentile of times in milliseconds."""
    return {name: value * 1e3 for name, value in zip(('p50_us', 'p99_us', 'p999_us'), found_ms, strict=True)}


def confluent_producer(site: Site, topic: str, seconds: float) -> dict[str, float]:
    return with_confluent(site, lambda client: client.produce(topic, False, seconds))


def confluent_consumer(site: Site, topic: str, seconds: float) -> dict[str, float]:
    return with_confluent(site, lambda client: client.consume(topic, False, int(seconds * RECORDS_S)))


def with_confluent(site: Site, work: Callable[[Confluent], Slice]) -> dict[str, float]:
    client = Confluent(site)
    try:
        work(client)  # warm-up
        found = work(client)
    finally:
        client.close()
    return {'rate': found.rate, 'cpu_us': found.broker_us}


CLIENTS: dict[str, Callable[[Site, str, float], dict[str, float]]] = {
    'ProducerPerformance': producer_performance, 'EndToEndLatency': end_to_end_latency,
    'confluent-kafka producer': confluent_producer, 'confluent-kafka consumer': confluent_consumer}
