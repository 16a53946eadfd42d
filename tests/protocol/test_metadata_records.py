"""Encoding and decoding of metadata records: fixed examples, framing, and errors. Kafka's dump tool decodes each of the
examples."""

import pytest

from kbroker.base.errors import CorruptLogError
from kbroker.protocol import messages, schema
from kbroker.protocol.codec import EncodeError, decode, encode
from kbroker.protocol.messages import (
    EndTxnRequest,
    FeatureLevelRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from kbroker.protocol.metadata_records import decode_metadata_record, encode_metadata_record

VECTORS = [
    ('FeatureLevel v0 metadata.version=30', 'FeatureLevelRecord', 0,
     '010c00116d657461646174612e76657273696f6e001e00'),
    ('RegisterBroker v4 (fenced, one dir, cordoned null)', 'RegisterBrokerRecord', 4,
     '0100040000000100202122232425262728292a2b2c2d2e2f0000000000000005020a504c41494e544558540a6c6f63616c68'
     '6f73742384000000050e67726f75702e76657273696f6e0000000100147472616e73616374696f6e2e76657273696f6e0000'
     '000200116d657461646174612e76657273696f6e0007001e000e6b726166742e76657273696f6e0000000100000100010011'
     '02101112131415161718191a1b1c1d1e1f'),
    ('RegisterBroker v3 (same, metadata.version 17..29)', 'RegisterBrokerRecord', 3,
     '0100030000000100202122232425262728292a2b2c2d2e2f0000000000000005020a504c41494e544558540a6c6f63616c68'
     '6f73742384000000050e67726f75702e76657273696f6e0000000100147472616e73616374696f6e2e76657273696f6e0000'
     '000200116d657461646174612e76657273696f6e0007001e000e6b726166742e76657273696f6e0000000100000100010011'
     '02101112131415161718191a1b1c1d1e1f'),
    ('BrokerRegistrationChange v0 unfence', 'BrokerRegistrationChangeRecord', 0,
     '011100000000010000000000000005010001ff'),
    ('BrokerRegistrationChange v0 fence', 'BrokerRegistrationChangeRecord', 0,
     '01110000000001000000000000000501000101'),
    ('BrokerRegistrationChange v1 controlled shutdown', 'BrokerRegistrationChangeRecord', 1,
     '01110100000001000000000000000501010101'),
    ('BrokerRegistrationChange v3 cordoned []', 'BrokerRegistrationChangeRecord', 3,
     '01110300000001000000000000000501030101'),
    ('UnregisterBroker v0', 'UnregisterBrokerRecord', 0,
     '01010000000001000000000000000500'),
    ('RegisterController v0', 'RegisterControllerRecord', 0,
     '011b0000000001202122232425262728292a2b2c2d2e2f00020b434f4e54524f4c4c45520a6c6f63616c686f737423850000'
     '00050e67726f75702e76657273696f6e0000000100147472616e73616374696f6e2e76657273696f6e0000000200116d6574'
     '61646174612e76657273696f6e0007001e000e6b726166742e76657273696f6e000000010000'),
    ('Topic v0', 'TopicRecord', 0,
     '010200037431303132333435363738393a3b3c3d3e3f00'),
    ('RemoveTopic v0', 'RemoveTopicRecord', 0,
     '010900303132333435363738393a3b3c3d3e3f00'),
    ('Partition v2', 'PartitionRecord', 2,
     '01030200000000303132333435363738393a3b3c3d3e3f020000000102000000010101000000010000000000000000021011'
     '12131415161718191a1b1c1d1e1f00'),
    ('Partition v2 with ELR (stopped cleanly)', 'PartitionRecord', 2,
     '01030200000000303132333435363738393a3b3c3d3e3f0200000001010101ffffffff000000010000000102101112131415'
     '161718191a1b1c1d1e1f020105020000000102050200000001'),
    ('Partition v1', 'PartitionRecord', 1,
     '01030100000000303132333435363738393a3b3c3d3e3f020000000102000000010101000000010000000000000000021011'
     '12131415161718191a1b1c1d1e1f00'),
    ('PartitionChange v2 clean stop (ELR on)', 'PartitionChangeRecord', 2,
     '01050200000000303132333435363738393a3b3c3d3e3f040001010104ffffffff0605020000000107050200000001'),
    ('PartitionChange v2 elected from ELR', 'PartitionChangeRecord', 2,
     '01050200000000303132333435363738393a3b3c3d3e3f0400050200000001010400000001060101070101'),
    ('PartitionChange v2 elected, ELR off', 'PartitionChangeRecord', 2,
     '01050200000000303132333435363738393a3b3c3d3e3f01010400000001'),
    ('PartitionChange v2 directories', 'PartitionChangeRecord', 2,
     '01050200000000303132333435363738393a3b3c3d3e3f01081102101112131415161718191a1b1c1d1e1f'),
    ('Config v0 set topic', 'ConfigRecord', 0,
     '010400020374310d726574656e74696f6e2e6d7309383634303030303000'),
    ('Config v0 delete topic key', 'ConfigRecord', 0,
     '010400020374310d726574656e74696f6e2e6d730000'),
    ('Config v0 cluster default min.insync.replicas', 'ConfigRecord', 0,
     '0104000401146d696e2e696e73796e632e7265706c69636173023100'),
    ('ProducerIds v0 first block taken', 'ProducerIdsRecord', 0,
     '010f0000000001000000000000000500000000000003e800'),
    ('ProducerIds v0 in a snapshot', 'ProducerIdsRecord', 0,
     '010f00ffffffffffffffffffffffff00000000000003e800'),
    ('ClientQuota v0 set', 'ClientQuotaRecord', 0,
     '010e0002057573657206616c696365001370726f64756365725f627974655f7261746540900000000000000000'),
    ('ClientQuota v0 remove, default client', 'ClientQuotaRecord', 0,
     '010e00020a636c69656e742d696400001370726f64756365725f627974655f7261746500000000000000000100'),
    ('AccessControlEntry v0 allow read topic t*', 'AccessControlEntryRecord', 0,
     '011200202122232425262728292a2b2c2d2e2f020274040b557365723a616c696365022a030300'),
    ('RemoveAccessControlEntry v0', 'RemoveAccessControlEntryRecord', 0,
     '011300202122232425262728292a2b2c2d2e2f00'),
    ('UserScramCredential v0', 'UserScramCredentialRecord', 0,
     '010b0006616c696365010573616c742101010101010101010101010101010101010101010101010101010101010101012102'
     '020202020202020202020202020202020202020202020202020202020202020000100000'),
    ('RemoveUserScramCredential v0', 'RemoveUserScramCredentialRecord', 0,
     '01160006616c6963650100'),
    ('DelegationToken v0', 'DelegationTokenRecord', 0,
     '010a000b557365723a616c6963650b557365723a616c6963650209557365723a626f620000018bcfe568000000018bf3f1ec'
     '000000018bd50bc40005746f6b3100'),
    ('RemoveDelegationToken v0', 'RemoveDelegationTokenRecord', 0,
     '011a0005746f6b3100'),
    ('NoOp v0', 'NoOpRecord', 0,
     '01140000'),
    ('BeginTransaction v0 Bootstrap records', 'BeginTransactionRecord', 0,
     '01170001001212426f6f747374726170207265636f726473'),
    ('EndTransaction v0', 'EndTransactionRecord', 0,
     '01180000'),
    ('AbortTransaction v0 Controller failover', 'AbortTransactionRecord', 0,
     '01190001001414436f6e74726f6c6c6572206661696c6f766572'),
    ('ClearElr v0 one topic', 'ClearElrRecord', 0,
     '011c0003743100'),
    ('UnregisterController v0 (metadata.version 33+)', 'UnregisterControllerRecord', 0,
     '011d000000000100'),
    ('ZkMigrationState v0 (read only; old clusters)', 'ZkMigrationStateRecord', 0,
     '0115000000'),
]

CONTROL_VECTORS = [
    ('LeaderChangeMessage', '00000000000102000000010002000000010000'),
    ('KRaftVersionRecord', '0000000100'),
    ('VotersRecord',
     '00000200000001101112131415161718191a1b1c1d1e1f020b434f4e54524f4c4c45520a6c6f63616c686f737423850000000001000000'),
    ('SnapshotHeaderRecord', '00000000018bcfe5680000'),
    ('SnapshotFooterRecord', '000000'),
]


@pytest.mark.parametrize(('name', 'version', 'data'), [row[1:] for row in VECTORS], ids=[row[0] for row in VECTORS])
def test_a_record_of_kafka_is_read_and_written_back(name, version, data):
    record, found_version = decode_metadata_record(bytes.fromhex(data))
    assert (type(record).__name__, found_version) == (name, version)
    assert encode_metadata_record(record, version).hex() == data


@pytest.mark.parametrize(('name', 'data'), CONTROL_VECTORS)
def test_a_control_record_of_kafka_is_read_and_written_back(name, data):
    message = decode(getattr(messages, name), bytes.fromhex(data), 0)
    assert encode(message, 0).hex() == data


def test_every_record_type_but_the_fence_pair_has_a_vector():
    records = {name for name, declaration in schema.declarations().items()
               if declaration.kind == 'record' and declaration.topic is None}
    assert records - {name for _, name, _, _ in VECTORS} == {'FenceBrokerRecord', 'UnfenceBrokerRecord'}


def test_the_fields_of_a_vector_are_those_that_went_in():
    by_title = {title: bytes.fromhex(data) for title, _, _, data in VECTORS}
    change, _ = decode_metadata_record(by_title['PartitionChange v2 clean stop (ELR on)'])
    assert change == PartitionChangeRecord(
        topic_id=bytes(range(0x30, 0x40)),
        partition_id=0,
        isr=[],
        leader=-1,
        eligible_leader_replicas=[1],
        last_known_elr=[1],
    )
    broker, _ = decode_metadata_record(by_title['RegisterBroker v4 (fenced, one dir, cordoned null)'])
    assert (broker.broker_id, broker.broker_epoch, broker.fenced, broker.rack) == (1, 5, True, None)
    assert broker.log_dirs == [bytes(range(0x10, 0x20))] and broker.cordoned_log_dirs is None
    assert broker.end_points == [
        RegisterBrokerRecord.BrokerEndpoint(name='PLAINTEXT', host='localhost', port=9092, security_protocol=0)
    ]
    assert [feature.name for feature in broker.features] == [
        'group.version',
        'transaction.version',
        'metadata.version',
        'kraft.version',
    ]
    quota, _ = decode_metadata_record(by_title['ClientQuota v0 set'])
    assert (quota.value, quota.entity[0].entity_name) == (1024.0, 'alice')


@pytest.mark.parametrize(('data', 'complaint'), [
    ('', 'no unsigned varint at byte 0 of the 0 bytes'),
    ('01', 'no unsigned varint at byte 1'),
    ('018c', 'no unsigned varint at byte 1'),
    ('01ffffffffff7f00', 'no unsigned varint at byte 1'),
    ('000c00', 'frame version 0, 1 expected'),
    ('020c00', 'frame version 2, 1 expected'),
    ('010d0000', 'unknown api key 13'),
    ('017f0000', 'unknown api key 127'),
    ('010c000261000100ff', 'api key 12, version 0: .*1 bytes left over'),
    ('010c0002610001', 'varint without an end'),
])
def test_a_frame_that_kafka_would_refuse_is_corrupt(data, complaint):
    with pytest.raises(CorruptLogError, match=complaint):
        decode_metadata_record(bytes.fromhex(data))


def test_a_version_above_the_known_ones_is_read_with_the_known_layout():
    record = TopicRecord(name='t1', topic_id=bytes(16))
    frame = bytearray(encode_metadata_record(record, 0))
    frame[2] = 1
    assert decode_metadata_record(frame) == (record, 1)


def test_unknown_tagged_fields_are_skipped():
    frame = encode_metadata_record(FeatureLevelRecord(name='metadata.version', feature_level=30), 0)
    assert frame.endswith(b'\x00')
    record, _ = decode_metadata_record(memoryview(frame[:-1] + b'\x01\x09\x02xy'))
    assert record.feature_level == 30


def test_a_version_that_no_table_has_is_not_written():
    with pytest.raises(EncodeError, match='TopicRecord has no version 1'):
        encode_metadata_record(TopicRecord(), 1)


def test_only_metadata_records_are_framed():
    for message in (messages.OffsetCommitKey(), EndTxnRequest(), messages.VotersRecord()):
        with pytest.raises(TypeError, match='is not a metadata record'):
            encode_metadata_record(message, 0)
