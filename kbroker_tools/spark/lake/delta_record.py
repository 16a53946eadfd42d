"""The record of a job in a Delta table.

The record of a job is in two places, and one commit makes both valid:

    txn kbroker:<job>:<cluster id>:run                        the number of the newest run
    txn kbroker:<job>:<cluster id>:attempt-high, attempt-low  the id of its attempt, as two 64-bit numbers
    txn kbroker:<job>:<cluster id>:<topic id>:partitions      the number of partitions of a topic
    txn kbroker:<job>:<cluster id>:<topic id>:<partition>     the next offset of a partition
    property kbroker.ingest.<job>                             JSON: cluster id, topic ids, shape and `run`

A cluster without an id has an empty text there, and a topic without an id has `name=<topic>`.

The commit of the files has the `txn` actions. They survive checkpoints and the cleanup of the log. A job replaces the
property only when its facts change, because a change of metadata makes concurrent appends of other programs fail. The
property is a commit before the commit of the files. It holds the facts from run `run` on, and in `previous` the facts
before. A driver that dies between the two commits leaves the number in `txn` below `run`, and then `previous` is valid.
So the commit of the files decides.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kbroker_tools.spark.lake.delta_log import Txns
from kbroker_tools.spark.lake.table_format import PROPERTY, VERSION, Attempt, JobRecord
from kbroker_tools.spark.ledger import IngestError
from kbroker_tools.spark.offsets import Offsets, to_json

Facts = dict[str, Any]


def _prefix(job: str, cluster_id: str | None) -> str:
    return f'kbroker:{job}:{cluster_id or ""}:'


def _topic_prefix(job: str, cluster_id: str | None, topic: str, topic_id: str | None) -> str:
    return f'{_prefix(job, cluster_id)}{topic_id or f"name={topic}"}:'


def versions(txns: Txns, job: str, name: str) -> list[int]:
    """Return the versions of a `txn` action of a job for all clusters: the cluster id may become known later."""
    return [version for app_id, version in txns.items()
            if app_id.startswith(f'kbroker:{job}:') and app_id.endswith(f':{name}')]


def valid_facts(facts: Facts | None, run: int) -> Facts | None:
    """Return the facts that hold for the newest run."""
    if facts is None or facts['run'] <= run:
        return facts
    return facts['previous'] and dict(facts['previous'])


def _offsets(facts: Mapping[str, Any], txns: Txns, job: str) -> Offsets:
    found: Offsets = {}
    for topic, topic_id in facts['topics'].items():
        prefix = _topic_prefix(job, facts['cluster_id'], topic, topic_id)
        for partition in range(txns.get(f'{prefix}partitions', 0)):
            offset = txns.get(f'{prefix}{partition}')
            if offset is not None:
                found[topic, partition] = offset
    return found


def _attempt(txns: Txns, prefix: str) -> str:
    """Return the id of the attempt of the newest run."""
    halves = [txns.get(f'{prefix}attempt-{name}', 0) for name in ('high', 'low')]
    return b''.join(each.to_bytes(8, 'big', signed=True) for each in halves).hex()


def marks(record: JobRecord) -> Txns:
    """Return all `txn` actions of a record."""
    prefix, id = _prefix(record.job, record.cluster_id), bytes.fromhex(record.attempt)
    found = {f'{prefix}run': record.run, f'{prefix}attempt-high': int.from_bytes(id[:8], 'big', signed=True),
             f'{prefix}attempt-low': int.from_bytes(id[8:], 'big', signed=True)}
    for (topic, partition), offset in record.offsets.items():
        of_topic = _topic_prefix(record.job, record.cluster_id, topic, record.topic_ids.get(topic))
        found[f'{of_topic}{partition}'] = offset
        found[f'{of_topic}partitions'] = max(found.get(f'{of_topic}partitions', 0), partition + 1)
    return found


def run_mark(record: JobRecord) -> str:
    """Return the appId with the number of the newest run."""
    return f'{_prefix(record.job, record.cluster_id)}run'


def is_of(txns: Txns, attempt: Attempt) -> bool:
    """Return whether the `txn` actions of a commit are those of an attempt."""
    prefixes = [app_id.removesuffix('run') for app_id in txns
                if app_id.startswith(f'kbroker:{attempt.job}:') and app_id.endswith(':run')]
    return any(_attempt(txns, prefix) == attempt.id for prefix in prefixes)


def read_facts(where: str, properties: Mapping[str, str], job: str) -> Facts | None:
    """Return the content of the property of a job, None if the table lacks it. Raise IngestError if it has another
    content."""
    text = properties.get(f'{PROPERTY}{job}')
    if text is None:
        return None
    try:
        found = json.loads(text)
        for each in filter(None, (found, found['previous'])):
            if each['version'] != VERSION:
                raise ValueError(f'version {each["version"]}')
            each['cluster_id'], dict(each['shape']), dict(each['topics']), int(each['run'])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f'no {error}' if isinstance(error, KeyError) else str(error)
        raise IngestError(f'{where}: found {what}, expected the facts of an ingest in version {VERSION}; another '
                          'program, or a newer kbroker, has written it') from None
    return dict(found)


def changed_facts(record: JobRecord, found: Facts | None, run: int) -> str | None:
    """Return the property that a commit of the record needs. Return None if the one that was found becomes valid with
    it. `run` is the newest run in the table.

    The facts that are valid now do not matter: a driver that died may have left newer ones, which the number of the run
    would make valid.
    """
    topics = sorted({topic for topic, _ in record.offsets} | record.topic_ids.keys())
    facts = {'version': VERSION, 'cluster_id': record.cluster_id, 'shape': json.loads(json.dumps(record.shape)),
             'topics': {topic: record.topic_ids.get(topic) for topic in topics}}
    after, valid = valid_facts(found, record.run), valid_facts(found, run)
    if after is not None and all(after[name] == facts[name] for name in facts):
        return None
    previous = valid and {name: valid[name] for name in (*facts, 'run')}
    return json.dumps({**facts, 'run': record.run, 'previous': previous})


def record_of(where: str, facts: Facts, txns: Txns, job: str, run: int) -> JobRecord:
    """Return the record that valid facts and `txn` actions make."""
    return JobRecord.from_json(job, where, {
        **facts, 'offsets': to_json(_offsets(facts, txns, job)), 'run': run,
        'topic_ids': {topic: topic_id for topic, topic_id in facts['topics'].items() if topic_id is not None},
        'attempt': _attempt(txns, _prefix(job, facts['cluster_id']))})
