"""The configuration of topics. A topic's overrides replace the broker's defaults."""
from collections.abc import Mapping
from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.settings.config import Config
from kbroker.settings.entries import ConfigEntry, Source, Synonym, check_value
from kbroker.settings.rows import CLOSE, Setting
from kbroker.settings.table import BROKER_NAME_OF, TOPIC_SETTINGS


class LogConfig:
    """The configuration of one topic: the topic's overrides, and the broker's defaults for all other settings.

    Each value is an attribute, named like the topic-level setting with `_` instead of `.`. Unknown and invalid
    overrides are ignored, because the metadata log may contain them. `validate_topic_configs` checks overrides before a
    client's change.
    """

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    retention_ms: int
    retention_bytes: int
    cleanup_policy: frozenset[str]
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    max_message_bytes: int
    max_decompressed_message_bytes: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    preallocate: bool
    min_insync_replicas: int
    errors_deadletterqueue_group_enable: bool
    internal_segment_bytes: int | None

    def __init__(self, config: Config, overrides: Mapping[str, str]):
        self.overrides = dict(overrides)
        for name, setting in TOPIC_SETTINGS.items():
            setattr(self, setting.attribute, self._value(config, name, setting))
        self.cleanup_policy = frozenset(self.cleanup_policy)
        if self.internal_segment_bytes is not None:
            self.segment_bytes = self.internal_segment_bytes

    def _value(self, config: Config, name: str, setting: Setting) -> Any:
        if name in self.overrides:
            try:
                return setting.parse(self.overrides[name])
            except ValueError:
                pass
        return config[BROKER_NAME_OF[name]] if name in BROKER_NAME_OF else setting.default


def validate_topic_configs(overrides: Mapping[str, str | None], config: Config) -> None:
    """Check all overrides of a topic. Raise KafkaError INVALID_CONFIG, which names the first bad setting."""
    for name, text in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            from kbroker.base.suggestions import did_you_mean  # the start does not need it

            raise KafkaError(ErrorCode.INVALID_CONFIG,
                             f'{name} is not a topic setting{did_you_mean(name, TOPIC_SETTINGS, least=CLOSE)}')
        if text is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f'{name}: found null, expected {setting.expected()}')
        check_value(setting, text, ErrorCode.INVALID_CONFIG)
    topic = LogConfig(config, {name: text for name, text in overrides.items() if text is not None})
    if topic.min_compaction_lag_ms > topic.max_compaction_lag_ms:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f'min.compaction.lag.ms: found {topic.min_compaction_lag_ms}, '
                         f'expected at most max.compaction.lag.ms, which is {topic.max_compaction_lag_ms}')


def describe_topic(config: Config, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return the entries of a topic for DescribeConfigs."""
    return [_topic_entry(config, setting, overrides) for setting in TOPIC_SETTINGS.values() if not setting.internal]


def _topic_entry(config: Config, setting: Setting, overrides: Mapping[str, str]) -> ConfigEntry:
    broker_name = BROKER_NAME_OF.get(setting.name)
    synonyms = [] if broker_name is None else config.synonyms(broker_name)
    if setting.name in overrides:
        text: str | None = setting.usual_text(overrides[setting.name])
        synonyms = [Synonym(setting.name, text, Source.DYNAMIC_TOPIC), *synonyms]
    else:
        text = setting.text(setting.default if broker_name is None else config[broker_name])
    source = synonyms[0].source if synonyms else Source.DEFAULT
    return ConfigEntry(setting.name, text, source, setting.type, False, setting.doc, synonyms)


def describe_new_topic(config: Config, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return the entries of a new topic for CreateTopics.

    Like Kafka, each value is the text of its strongest source.
    """
    entries = []
    for setting in TOPIC_SETTINGS.values():
        broker_name = BROKER_NAME_OF.get(setting.name)
        text: str | None
        if setting.name in overrides:
            text, source = overrides[setting.name], Source.DYNAMIC_TOPIC
        elif broker_name is not None:
            text, source = config.strongest(broker_name)
        else:
            text, source = setting.text(setting.default), Source.DEFAULT
        if not setting.internal:
            entries.append(ConfigEntry(setting.name, text, source, setting.type, False, setting.doc))
    return entries
