"""The targets of fuzzing: the readers of bytes that a peer, a file or a person chooses, with the errors that they may
raise.

A target is a function of bytes. A fault is an exception that the reader does not document, an error in the broker's
log, or more output than a bound allows.
"""
from __future__ import annotations

import contextlib
import logging
import pathlib
import random
import struct
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from fuzz import control_requests, value_schemas
from fuzz.frames import Frames
from joserfc.jwk import ECKey
from support.brokers.in_process_broker import InProcessBroker
from support.clients.exchanges import answer_of
from support.clients.login_mechanisms import TOKENS, every_mechanism, write_key_set
from support.messages.filled_messages import filled

from kbroker.apis.serving.served import apis_under
from kbroker.base.errors import ConfigError, CorruptLogError, KafkaError, LogDirectoryError, ProtocolError
from kbroker.base.linear_pattern import LinearPattern, PatternError
from kbroker.log.checkpoints import (
    LEADER_EPOCH_FILE,
    LOG_START_OFFSET_FILE,
    encode_partition_offsets,
    encode_rows,
    read_partition_offsets,
)
from kbroker.log.formats import OFFSET_ENTRY, TIME_ENTRY, TRANSACTION_ENTRY
from kbroker.log.fs import FileSystem
from kbroker.log.index import OffsetIndex, TimeIndex
from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.log.partition_metadata import FILE_NAME as TOPIC_ID_FILE
from kbroker.log.partition_metadata import format_uuid, read_topic_id
from kbroker.log.producer_state import ProducerStateTable
from kbroker.log.transaction_index import TransactionIndex
from kbroker.metadata.batches import decode_batch
from kbroker.metadata.directory import META_PROPERTIES_FILE, read_meta_properties
from kbroker.metadata.quorum_state import QuorumState, parse_quorum_state
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.codec import decode, encode
from kbroker.protocol.rows import RowError, decode_row_key, decode_row_value, encode_row_key, row_classes
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import HEADER_BYTES, encode_batch, iter_batches, read_header
from kbroker.record.columns import COLUMNS, ColumnDecoder
from kbroker.record.compression import Compression, compress, decompress
from kbroker.record.produced import prepare_produced
from kbroker.record.produced_records import ProduceRules
from kbroker.record.records import decode_records
from kbroker.security.certificates import validity_of
from kbroker.security.der import CertificateError, read_certificate, read_revocation_list
from kbroker.security.distinguished_names import name_text, subject_text
from kbroker.security.mechanism import AuthenticationError
from kbroker.security.principal_mapping import MappingError, mapped_name, parse_mapping_rules
from kbroker.settings.config import Config
from kbroker.settings.jaas import JaasError, parse_jaas
from kbroker.settings.properties import read_properties
from kbroker.settings.topic_config import LogConfig
from kbroker.wire.crc32c import crc32c

SEED = 17
MAX_OUTPUT_BYTES = 64 * 1024
NOW_MS = 1_700_000_000_000
TOPIC_ID = b'the id of orders'
"""The placeholder that inputs contain for the id of the topic `orders`, which differs from run to run."""
BATCH_CRC = struct.Struct('>I')
CRC_POSITION, CRC_COVERS_FROM = 17, 21


class Target(NamedTuple):
    """A target to fuzz. `seeds` yields the inputs with which a run begins."""

    run: Callable[[bytes], object]
    seeds: Callable[[], Iterator[bytes]]


_held = contextlib.ExitStack()


def close() -> None:
    """Stop the broker and delete the files that targets have made."""
    _held.close()
    for made in (_errors, _orders_id, _broker, _mechanisms, _control_port, _directory):
        made.cache_clear()


@cache
def _directory() -> pathlib.Path:
    return pathlib.Path(_held.enter_context(tempfile.TemporaryDirectory(prefix='kbroker-fuzz-')))


# ---- readers of bytes from peers

class _Errors(logging.Handler):
    """Turns an error in the log into a failure of the target. The dispatcher logs each unexpected exception as an
    error.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))

    def check(self) -> None:
        found, self.found = self.found, []
        assert not found, found


@cache
def _errors() -> _Errors:
    handler, logger = _Errors(), logging.getLogger('kbroker')
    logger.addHandler(handler)
    _held.callback(logger.removeHandler, handler)
    return handler


@cache
def _broker() -> InProcessBroker:
    broker = _held.enter_context(InProcessBroker(_directory() / 'broker', {
        'offsets.topic.num.partitions': '2', 'transaction.state.log.num.partitions': '2',
        'transaction.two.phase.commit.enable': 'true', 'kbroker.durability': 'page-cache'}))
    broker.topics.create('orders', 2, {})
    broker.topics.create('compacted', 1, {'cleanup.policy': 'compact'})
    return broker


@cache
def _orders_id() -> bytes:
    return _broker().topics.topic('orders').topic_id


def run_request(data: bytes) -> None:
    """Send the bytes as a frame to a complete broker."""
    errors, broker = _errors(), _broker()
    connection = broker.connect()
    broker.send(connection, data.replace(TOPIC_ID, _orders_id()))
    broker.disconnect(connection)
    broker.clock.advance(1)
    broker.turn()
    errors.check()


def requests() -> Iterator[bytes]:
    frames = Frames(apis_under(_broker().config), SEED, [TOPIC_ID])
    for _ in range(400):
        yield frames.plausible()[1]


@cache
def _responses() -> list[tuple[type[Any], int]]:
    classes = [getattr(messages, key.name.title().replace('_', '') + 'Response', None) for key in ApiKey]
    return [(response, version) for response in classes if response is not None
            for version in range(response.versions[0], response.versions[1] + 1)]


def run_response(data: bytes) -> None:
    """Decode an answer as the client does. Encode the message, decode and encode it again, and compare the bytes."""
    if len(data) < 2:
        return
    response_class, version = _responses()[int.from_bytes(data[:2], 'big') % len(_responses())]
    with contextlib.suppress(ProtocolError):
        message = decode(response_class, data, version, 2)
        encoded = encode(message, version)
        assert encode(decode(response_class, encoded, version), version) == encoded


def responses() -> Iterator[bytes]:
    chance = random.Random(SEED)
    for index, (response_class, version) in enumerate(_responses()):
        yield index.to_bytes(2, 'big') + encode(filled(response_class, version, chance), version)


@cache
def _rules() -> ProduceRules:
    return ProduceRules(LogConfig(Config({'log.dirs': 'x'}), {'compression.type': 'lz4'}),
                        max_decompressed_bytes=MAX_OUTPUT_BYTES)


def run_batch(data: bytes) -> None:
    """Read a batch as the broker and as the consumer do. Correct its checksum first, because most mutations make it
    wrong.
    """
    if len(data) >= HEADER_BYTES:
        data = (data[:CRC_POSITION] + BATCH_CRC.pack(crc32c(data[CRC_COVERS_FROM:])) + data[CRC_POSITION + 4:])
    readers: list[Callable[[], object]] = [
        lambda: [read_header(batch) for _, batch in iter_batches(data)],
        lambda: decode_records(data, max_decompressed_bytes=MAX_OUTPUT_BYTES),
        lambda: _decode_columns(data),
        lambda: prepare_produced(data, _rules(), NOW_MS),
        lambda: ProducerStateTable().replay_batch(data),
    ]
    for read in readers:
        with contextlib.suppress(KafkaError, CorruptLogError):
            read()
    with contextlib.suppress(KafkaError, CorruptLogError):
        for header, batch in iter_batches(data):
            decode_batch(header, batch)


def _decode_columns(data: bytes) -> None:
    decoder = ColumnDecoder(COLUMNS, batch_rows=100, batch_bytes=MAX_OUTPUT_BYTES,
                            max_decompressed_bytes=MAX_OUTPUT_BYTES)
    batch_filter, position = AbortFilter([(1, 0), (2, 50)]), 0
    while position < len(data):
        position = decoder.feed(data, batch_filter, position=position)
        decoder.take()
        if not decoder.is_full:
            break


def batches() -> Iterator[bytes]:
    rows = [(NOW_MS + number, b'key', b'value' * number, [('name', b'x'), ('none', None)]) for number in range(5)]
    for codec in Compression:
        yield bytes(encode_batch(rows, compression=codec))
        yield bytes(encode_batch(rows, compression=codec, producer_id=1, producer_epoch=2, base_sequence=3,
                                 transactional=True))
    yield bytes(encode_batch([(NOW_MS, b'\0\0\0\0', b'\0\0\0\0\0\0')], producer_id=1, producer_epoch=2, control=True,
                             transactional=True))
    yield bytes(encode_batch([(NOW_MS, None, None)], log_append_time_ms=NOW_MS))


def run_payload(data: bytes) -> None:
    """Decompress the bytes, and check that the output is within the bound."""
    if data:
        with contextlib.suppress(KafkaError):
            assert len(decompress(data[0] % 5, data[1:], MAX_OUTPUT_BYTES)) <= MAX_OUTPUT_BYTES


def payloads() -> Iterator[bytes]:
    for codec in Compression:
        for content in (b'', b'value' * 100, bytes(4 * MAX_OUTPUT_BYTES), random.Random(SEED).randbytes(3000)):
            yield bytes([codec]) + compress(codec, content)


def run_login(data: bytes) -> None:
    """Send the tokens in the bytes to each mechanism, until one logs in or fails."""
    for mechanism in _mechanisms():
        exchange = mechanism.begin()
        with contextlib.suppress(AuthenticationError):
            for token in data.split(b'\xff\xfe'):
                answer_of(exchange, token)
                if exchange.outcome is not None:
                    break


@cache
def _mechanisms() -> list[Any]:
    return every_mechanism(write_key_set(_directory(), ECKey.generate_key('P-256')))


def logins() -> Iterator[bytes]:
    for token in TOKENS:
        yield token
        yield b'n,,n=alice,r=abc\xff\xfe' + token


def run_name(data: bytes) -> None:
    """Read the bytes as a certificate, as a revocation list and as a name. Then read them as rules and a name, and map
    the name by the rules.
    """
    with contextlib.suppress(CertificateError):
        subject_text(data)
    with contextlib.suppress(CertificateError):
        validity_of(read_certificate(data))
    with contextlib.suppress(CertificateError):
        validity_of(read_revocation_list(data))
    with contextlib.suppress(CertificateError):
        name_text(data)
    rules, _, subject = data.decode('utf-8', 'replace').partition('\n')
    with contextlib.suppress(MappingError):
        mapped_name(subject, parse_mapping_rules(rules))


def names() -> Iterator[bytes]:
    yield bytes.fromhex('301c310d300b06035504030c04757365 72310b3009060355040a0c024f31'.replace(' ', ''))
    yield bytes.fromhex('302d302b0201013000 30003020170d') + b'270101000000Z\x18\x0f20500101000000Z' + b'\x30\x00'
    yield b'RULE:^CN=([^,ADEFLTU,]+),.*$/$1/L,DEFAULT\nCN=Alice,OU=x,C=DE'
    yield b'RULE:.*/x/,RULE:^CN=(.*?)$/$1@host/U\nCN=bob'


# ---- readers of bytes from files

def run_row(data: bytes) -> None:
    """Read a row of an internal topic. The first bytes choose the topic and the length of the key; the value is the
    rest."""
    if len(data) < 3:
        return
    topic = TOPICS_OF_ROWS[data[0] % len(TOPICS_OF_ROWS)]
    end = 3 + int.from_bytes(data[1:3], 'big') % 512
    try:
        key = decode_row_key(topic, data[3:end])
        if key is not None:
            _, value_class = next(classes for classes in row_classes(topic).values() if classes[0] is type(key))
            decode_row_value(value_class, data[end:])
    except RowError:
        return


TOPICS_OF_ROWS = ('__consumer_offsets', '__transaction_state', '__share_group_state')


def rows() -> Iterator[bytes]:
    chance = random.Random(SEED)
    for number, topic in enumerate(TOPICS_OF_ROWS):
        for key_class, value_class in row_classes(topic).values():
            key = encode_row_key(filled(key_class, key_class.versions[1], chance))
            for version in range(value_class.versions[0], value_class.versions[1] + 1):
                yield (bytes([number]) + len(key).to_bytes(2, 'big') + key + version.to_bytes(2, 'big')
                       + encode(filled(value_class, version, chance), version))


def _load_snapshot(directory: str, name: str) -> None:
    table = ProducerStateTable()
    table.load_snapshot(pathlib.Path(directory, name).read_bytes(), 100, NOW_MS)
    table.encode_snapshot()


def _read_transactions(directory: str, name: str) -> None:
    index = TransactionIndex(FileSystem(), f'{directory}/{name}', 0, exists=True)
    index.check()
    index.collect(0, 1 << 62)


def _read_index(directory: str, name: str) -> None:
    kind = TimeIndex if name.endswith('.timeindex') else OffsetIndex
    file = pathlib.Path(directory, name)
    index = kind(FileSystem(), str(file), 5, 1024, file_bytes=file.stat().st_size)
    index.check()
    for key, _ in index:
        index.lookup(key)


READERS: dict[str, Callable[[str, str], object]] = {
    '00000000000000000005.snapshot': _load_snapshot,
    '00000000000000000005.txnindex': _read_transactions,
    '00000000000000000005.index': _read_index,
    '00000000000000000005.timeindex': _read_index,
    LOG_START_OFFSET_FILE: lambda directory, name: read_partition_offsets(FileSystem(), directory, name),
    LEADER_EPOCH_FILE: lambda directory, name: LeaderEpochs(FileSystem(), directory),
    TOPIC_ID_FILE: lambda directory, name: read_topic_id(FileSystem(), directory),
    META_PROPERTIES_FILE: lambda directory, name: read_meta_properties(FileSystem(), directory),
    'quorum-state': lambda directory, name: parse_quorum_state(pathlib.Path(directory, name).read_bytes(), name),
}
"""The readers of small files. The first byte of an input chooses the reader."""


def run_file(data: bytes) -> None:
    """Read the bytes as a file of a log directory."""
    if not data:
        return
    name = list(READERS)[data[0] % len(READERS)]
    file = _directory() / name
    file.write_bytes(data[1:])
    try:
        with contextlib.suppress(CorruptLogError, LogDirectoryError):
            READERS[name](str(_directory()), name)
    finally:
        file.unlink(missing_ok=True)


def files() -> Iterator[bytes]:
    table = ProducerStateTable()
    for producer_id in (1, 2):
        table.replay_batch(encode_batch([(NOW_MS, b'k', b'v')], base_offset=producer_id, producer_id=producer_id,
                                        producer_epoch=0, base_sequence=0, transactional=True))
    contents = (
        table.encode_snapshot(), b''.join(TRANSACTION_ENTRY.pack(0, number, 0, number + 5, 3) for number in (1, 2)),
        b''.join(OFFSET_ENTRY.pack(10 * number, 100 * number) for number in (1, 2, 3)),
        b''.join(TIME_ENTRY.pack(NOW_MS + number, 10 * number) for number in (1, 2, 3)),
        encode_partition_offsets({('orders', 0): 5, ('orders', 1): 7}), encode_rows(['0 0', '1 5']),
        f'version: 0\ntopic_id: {format_uuid(bytes(range(16)))}'.encode(),
        f'version=1\ncluster.id=x\nnode.id=1\ndirectory.id={format_uuid(bytes(range(16)))}\n'.encode(),
        QuorumState(3, 1, (1,), 1).encode())
    for number, content in enumerate(contents):
        yield bytes([number]) + content


# ---- readers of text from people

def run_settings(data: bytes) -> None:
    """Read the bytes as a settings file, and as the configuration of a login module, which has its own grammar."""
    text = data.decode('utf-8', 'replace')
    with contextlib.suppress(JaasError):
        parse_jaas(text)
    try:
        found, _ = read_properties(text)
    except ValueError:
        return
    with contextlib.suppress(ConfigError):
        Config({'log.dirs': 'x', **found})


def settings() -> Iterator[bytes]:
    yield b'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="x\\"y" /* c */ b=\'z\';'
    yield b'listeners=INTERNAL://localhost:9092,EXTERNAL://:9093\nlistener.security.protocol.map=INTERNAL:PLAINTEXT,' \
          b'EXTERNAL:SASL_SSL\nadvertised.listeners=EXTERNAL://example.org:9093\ninter.broker.listener.name=INTERNAL'
    yield b'# comment\nlog.retention.hours : 5\nlog.segment.bytes 1048576\\\n0\nnum.partitions=\\u0033\n!x'
    yield b'log.cleanup.policy=compact,delete\ncompression.type=zstd\nbroker.id=1\nlog.retention.ms=-1'
    yield b'ssl.principal.mapping.rules=RULE:^CN=(.*)$/$1/L,DEFAULT\nsuper.users=User:alice;User:bob'


def run_pattern(data: bytes) -> None:
    """Compile the first line as a regular expression, and match the second line against it."""
    pattern, _, text = data.decode('utf-8', 'replace').partition('\n')
    with contextlib.suppress(PatternError):
        LinearPattern(pattern).matches(text[:500])


def patterns() -> Iterator[bytes]:
    yield b'(a+)+b|[^x-z[:alpha:]]{2,3}?\naaab'
    yield br'(?i:Or)ders-\d+\.(?P<n>\w*)$' + b'\norders-17.x'
    yield br'\pL\p{^Lu}\x{10FFFF}\Q.*\E\bx\B[\d\]\-]' + b'\nab'


@cache
def _control_port() -> control_requests.FuzzedPort:
    directory = _directory() / 'controlled'
    directory.mkdir()
    return control_requests.FuzzedPort(directory)


def run_control(data: bytes) -> None:
    """Send bytes to a control port."""
    errors = _errors()
    assert len(_control_port().run(data)) <= MAX_OUTPUT_BYTES
    errors.check()


TARGETS = {
    'requests': Target(run_request, requests),
    'responses': Target(run_response, responses),
    'batches': Target(run_batch, batches),
    'payloads': Target(run_payload, payloads),
    'logins': Target(run_login, logins),
    'names': Target(run_name, names),
    'rows': Target(run_row, rows),
    'files': Target(run_file, files),
    'settings': Target(run_settings, settings),
    'patterns': Target(run_pattern, patterns),
    'control': Target(run_control, control_requests.requests),
    'schemas': Target(value_schemas.run, value_schemas.seeds),
}
