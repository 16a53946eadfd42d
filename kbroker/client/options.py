"""The settings of the clients as typed parameters: Kafka's names with underscores instead of dots.

A setting without a parameter, such as most of `ssl.`, is passed in the argument `settings`.
"""
from __future__ import annotations

from pathlib import Path
from typing import Literal, TypedDict


class ConnectionOptions(TypedDict, total=False):
    bootstrap_servers: str
    client_id: str
    security_protocol: Literal['PLAINTEXT', 'SSL', 'SASL_PLAINTEXT', 'SASL_SSL']
    sasl_mechanism: Literal['PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512', 'OAUTHBEARER']
    sasl_username: str
    sasl_password: str
    sasl_jaas_config: str
    ssl_truststore_location: str | Path
    ssl_keystore_location: str | Path
    ssl_key_password: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    connections_max_idle_ms: int


class ProducerOptions(ConnectionOptions, total=False):
    acks: int | Literal['all']
    enable_idempotence: bool
    transactional_id: str
    transaction_timeout_ms: int
    two_phase_commit: bool
    compression_type: Literal['none', 'gzip', 'snappy', 'lz4', 'zstd']
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    linger_ms: int
    batch_size: int
    max_request_size: int
    buffer_memory: int
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    max_block_ms: int
    metadata_max_age_ms: int
    metadata_max_idle_ms: int
    retries: int


class ConsumerOptions(ConnectionOptions, total=False):
    group_id: str
    group_instance_id: str
    group_protocol: Literal['classic', 'consumer']
    group_remote_assignor: str
    isolation_level: Literal['read_uncommitted', 'read_committed']
    auto_offset_reset: Literal['earliest', 'latest', 'none']
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    metadata_max_age_ms: int
    partition_assignment_strategy: str
    check_crcs: bool
