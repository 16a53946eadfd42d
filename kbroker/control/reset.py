"""The reset of a broker that several tests share: it becomes as empty as a new one.

All topics are deleted, the internal ones, too. So the coordinators forget all groups and transactional ids, and create
their topics again when they are needed. Configs, quotas, ACLs and credentials become those that the broker had when it
started. Features, producer ids and the clock stay.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kbroker.apis.serving.config_resources import differences, put_into_effect
from kbroker.base.errors import KafkaError
from kbroker.control.bodies import ControlError, check_names
from kbroker.control.rules import Rules
from kbroker.metadata.changes import Steps
from kbroker.metadata.config_records import config_record
from kbroker.metadata.image import MetadataImage, ResourceType
from kbroker.protocol.messages import (
    ClientQuotaRecord,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
)

NOTHING: Mapping[str, Any] = {}


def answer_reset(node: Any, rules: Rules, before: MetadataImage, body: Mapping[str, Any]) -> Steps[dict[str, Any]]:
    """Answer a request to reset the broker. Raise ControlError."""
    check_names(body, ())
    refuse_while_held(rules, 'reset')
    try:
        yield from reset(node, before)
    except KafkaError as error:
        raise ControlError(f'the broker cannot be reset: {error}', 503) from None
    return {}


def refuse_while_held(rules: Rules, what: str) -> None:
    """Raise ControlError if an operation waits for a rule. It would go on later, in a broker that has changed."""
    if not rules.waiting:
        return
    texts = [f'rule {rule.id}, {rule.text}' for rule in rules.all() if rule.held] or ['delays']
    raise ControlError(f'no {what} is possible while operations wait: found {len(rules.waiting)}, by '
                       f'{"; ".join(texts)}. Release them first', 409)


def reset(node: Any, before: MetadataImage) -> Steps[None]:
    """Delete all topics of a Node, and give it the configs, quotas, ACLs and credentials of `before`.

    `before` is the image at the start of the broker. The work ends when all of it is durable and in force. Raise
    KafkaError if the disk fails.
    """
    yield from node.topics.delete_many(node.topics.topics(), removes_at_once=True)
    commits = node.metadata.commits
    yield from commits.turns.take()
    try:
        now = commits.image
        changed = [resource for resource in {**now.configs, **before.configs} if resource[0] != ResourceType.TOPIC
                   and now.configs.get(resource, {}) != before.configs.get(resource, {})]
        yield from commits.write_in_batches([*_config_records(now, before, changed), *_quota_records(now, before),
                                             *_security_records(now, before)])
        yield from put_into_effect(node, changed)
    finally:
        commits.turns.end()


def _config_records(now: MetadataImage, before: MetadataImage, changed: list[tuple[int, str]]) -> Iterator[Any]:
    for resource in changed:
        changes = differences(now.configs.get(resource, {}), before.configs.get(resource, {}))
        for name, value in changes.items():
            yield config_record(*resource, name, value)


def _quota_records(now: MetadataImage, before: MetadataImage) -> Iterator[Any]:
    for entity in {**now.client_quotas, **before.client_quotas}:
        found, wanted = now.client_quotas.get(entity, NOTHING), before.client_quotas.get(entity, NOTHING)
        parts = [ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
        for key in {**found, **wanted}:
            if found.get(key) != wanted.get(key):
                yield ClientQuotaRecord(entity=parts, key=key, value=wanted.get(key, 0.0), remove=key not in wanted)


def _security_records(now: MetadataImage, before: MetadataImage) -> Iterator[Any]:
    for entry_id in now.access_control_entries.keys() - before.access_control_entries.keys():
        yield RemoveAccessControlEntryRecord(id=entry_id)
    for entry_id in before.access_control_entries.keys() - now.access_control_entries.keys():
        yield before.access_control_entries[entry_id]
    for name, mechanism in now.scram_credentials.keys() - before.scram_credentials.keys():
        yield RemoveUserScramCredentialRecord(name=name, mechanism=mechanism)
    for key, credential in before.scram_credentials.items():
        if now.scram_credentials.get(key) is not credential:
            yield credential
