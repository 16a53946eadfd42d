"""The configs of GROUP resources: the check of changes, and the entries for DescribeConfigs."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.settings.config import Config
from kbroker.settings.entries import ConfigEntry, Source, Synonym, check_value
from kbroker.settings.groups import GROUP_SETTINGS, LESS_THAN, GroupSetting
from kbroker.settings.rows import CLOSE


def value_in_force(config: Config, setting: GroupSetting, overrides: Mapping[str, str]) -> Any:
    """Return the value of a setting that is in force for a group.

    It is the group's override, limited by the bounds of the broker, or else the broker's value. An invalid override is
    ignored: it was valid when a client set it.
    """
    text = overrides.get(setting.row.name)
    if text is None:
        return default(config, setting)
    try:
        value = setting.row.parse(text)
    except ValueError:
        return default(config, setting)
    if refusal(config, setting, value) is not None:
        return default(config, setting)
    if setting.least is not None:
        value = max(value, config[setting.least])
    if setting.most is not None:
        value = min(value, config[setting.most])
    return value


def default(config: Config, setting: GroupSetting) -> Any:
    """Return the value in force for a group without an override."""
    if setting.broker_name is None:
        return setting.row.default
    value = config[setting.broker_name]
    return value[0] if setting.is_one_of_the_brokers else value


def refusal(config: Config, setting: GroupSetting, value: Any) -> str | None:
    """Return Kafka's error message for a value that its setting refuses. For all other values, return None."""
    if setting.refusal is None:
        return None
    return setting.refusal(value, None if setting.broker_name is None else config[setting.broker_name])


def validate_group_configs(config: Config, overrides: Mapping[str, str]) -> None:
    """Check all overrides of a group. Raise KafkaError INVALID_CONFIG, which names the first bad setting."""
    values = {}
    for name, text in overrides.items():
        setting = GROUP_SETTINGS.get(name)
        if setting is None:
            from kbroker.base.suggestions import did_you_mean  # the start does not need it

            raise KafkaError(ErrorCode.INVALID_CONFIG,
                             f'{name} is not a group setting{did_you_mean(name, GROUP_SETTINGS, least=CLOSE)}')
        check_value(setting.row, text, ErrorCode.INVALID_CONFIG)
        values[name] = setting.row.parse(text)
    for name, value in values.items():
        setting = GROUP_SETTINGS[name]
        message = refusal(config, setting, value)
        if message is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
        if setting.least is not None and value < config[setting.least]:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f'{name}: found {value}, expected at least {setting.least}, '
                             f'which is {config[setting.least]}')
        if setting.most is not None and value > config[setting.most]:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f'{name}: found {value}, expected at most {setting.most}, '
                             f'which is {config[setting.most]}')
    for low, high in LESS_THAN:
        smaller, larger = (values.get(name, default(config, GROUP_SETTINGS[name])) for name in (low, high))
        if (low in values or high in values) and smaller >= larger:
            raise KafkaError(ErrorCode.INVALID_CONFIG,
                             f'{low}: found {smaller}, expected less than {high}, which is {larger}')


def describe_group(config: Config, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return the entries of a group for DescribeConfigs.

    As in Kafka, an internal setting has an entry only if it is set, and the entry has its text as it was written.
    """
    return [_entry(config, setting, overrides) for name, setting in GROUP_SETTINGS.items()
            if not setting.row.internal or name in overrides]


def _entry(config: Config, setting: GroupSetting, overrides: Mapping[str, str]) -> ConfigEntry:
    row = setting.row
    if setting.broker_name is None:
        synonyms = [Synonym(row.name, row.text(row.default), Source.DEFAULT)]
    else:
        synonyms = config.synonyms(setting.broker_name)
    if row.name in overrides:
        text: str | None = overrides[row.name] if row.internal else row.usual_text(overrides[row.name])
        synonyms = [Synonym(row.name, text, Source.DYNAMIC_GROUP), *synonyms]
    else:
        text = row.text(default(config, setting))
    return ConfigEntry(row.name, text, synonyms[0].source, row.type, False, row.doc, synonyms)
