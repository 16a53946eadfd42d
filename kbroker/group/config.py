"""The configs in force for a group. Each config has the value from the group's configs in the metadata log if it is set
there, else the value from the broker's settings.

`GroupCoordinator.group_config(group_id)` returns a `GroupConfig`. Call the method for each request, because configs
change while the broker runs. A call is cheap: all groups without configs in the metadata log share one `GroupConfig`.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kbroker.base.object_memory import RecentEntries
from kbroker.settings.config import Config
from kbroker.settings.group_resources import value_in_force
from kbroker.settings.groups import GROUP_KINDS, GROUP_SETTINGS

MOST_KEPT = 1000
MOST_KEPT_BYTES = 6 * 1024 * 1024
"""The largest number of groups whose GroupConfig objects are cached, and the largest memory of these objects in
bytes."""
MOST_KEPT_CHARACTERS = 200
"""The most characters in the configs of a group whose GroupConfig is cached. Lists and topic names may be long."""
KEPT_BYTES = 5_000
"""The largest memory of a cached GroupConfig in bytes, measured on CPython 3.11 with 64 bits.

Most objects take 750 bytes. The largest has a list of MOST_KEPT_CHARACTERS characters with many short entries.
"""

OverridesOf = Callable[[str], Mapping[str, str]]
"""A function that takes a group id, and returns the group's configs in the metadata log as a mapping from names to
values. A returned mapping never changes; after a change of the configs, the function returns a new mapping."""


class Timing(NamedTuple):
    """The settings of one kind of group that exist for every kind."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


class GroupConfig:
    """The configs in force for one group. Each attribute has the name of a config of a GROUP resource, with
    underscores."""

    share_record_lock_duration_ms: int
    share_delivery_count_limit: int
    share_partition_max_record_locks: int
    share_auto_offset_reset: str
    share_isolation_level: str
    share_renew_acknowledge_enable: bool
    errors_deadletterqueue_topic_name: str
    errors_deadletterqueue_copy_record_enable: bool
    streams_num_standby_replicas: int
    streams_initial_rebalance_delay_ms: int
    streams_assignor_name: str
    streams_rack_aware_assignment_tags: tuple[str, ...]
    streams_num_warmup_replicas: int
    streams_task_offset_interval_ms: int
    streams_acceptable_recovery_lag: int

    def __init__(self, config: Config, overrides: Mapping[str, str]):
        values = {name: value_in_force(config, setting, overrides) for name, setting in GROUP_SETTINGS.items()}
        for name, setting in GROUP_SETTINGS.items():
            setattr(self, setting.row.attribute, values[name])
        self.timing: dict[str, Timing] = {
            kind: Timing(*(values[f'{kind}.{name}'] for name in (
                'session.timeout.ms', 'heartbeat.interval.ms', 'assignment.interval.ms'))) for kind in GROUP_KINDS}
        """Maps each kind of group (consumer, share, streams) to its timing."""


class GroupConfigs:
    """The configs of all groups. A group's GroupConfig is cached until the group's configs change.

    A GroupConfig with longer configs than MOST_KEPT_CHARACTERS is not cached.
    """

    def __init__(self, config: Config, overrides_of: OverridesOf):
        self._config = config
        self._overrides_of = overrides_of
        self._without_overrides = GroupConfig(config, {})
        self._kept: RecentEntries[str, tuple[Mapping[str, str], GroupConfig]] = RecentEntries(
            MOST_KEPT_BYTES, MOST_KEPT, KEPT_BYTES)

    def of(self, group_id: str) -> GroupConfig:
        """Return the configs in force for a group. The group need not exist."""
        overrides = self._overrides_of(group_id)
        if not overrides:
            return self._without_overrides
        try:
            known, config = self._kept.get(group_id)
        except KeyError:
            pass
        else:
            if known is overrides:
                return config
            self._kept.forget(group_id)
        config = GroupConfig(self._config, overrides)
        if sum(map(len, overrides.values())) <= MOST_KEPT_CHARACTERS:
            self._kept.put(group_id, (overrides, config))
        return config

    def reconfigure(self) -> None:
        """Adopt the broker's settings after they have changed."""
        self._without_overrides = GroupConfig(self._config, {})
        self._kept.clear()
