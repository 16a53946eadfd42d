"""Writes decisions about access to the broker's log, at the same log levels as Kafka.

The denial of a request is logged at INFO. The first denial is logged immediately. Equal denials within the next 10
seconds are counted and logged as one line, so that a client that repeats its request does not fill the log. Decisions
that allow a request are logged at DEBUG. Decisions that only filter an answer are logged at TRACE.
"""
from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from kbroker.base.clock import Timers
from kbroker.base.ledger import Line
from kbroker.base.object_memory import memory_of
from kbroker.base.repeats import Repeats
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType, name_of
from kbroker.security.escape import quoted, shown

TRACE = 5
MOST_DENIALS = 1000
MOST_DENIAL_BYTES = 4 * 1024 * 1024
"""The limits of the number of different denials that are counted at one time, and of their memory.

Above a limit, a new denial is counted together with all denials of its principal, operation and resource type. At twice
a limit, the oldest counted denial is logged and removed.
"""
DENIAL_BYTES = 700
"""The bytes of memory of a counted denial without its texts, measured on 64-bit CPython 3.11."""
OTHERS = '(others)'

logger = logging.getLogger('kbroker.authorizer')

Report = Callable[[dict[str, Any]], object]


class DecisionLog:
    """The log of decisions. It calls `report` with the fields of each line about a denial, for the audit."""

    def __init__(self, timers: Timers | None = None, report: Report = lambda fields: None):
        """Use `timers` for the windows in which equal denials are counted. Without `timers`, log each denial."""
        self._report = report
        self.denials: Counter[int] = Counter()
        """The denials of requests by Operation, without decisions that only filter an answer."""
        self._repeats: Repeats[dict[str, Any]] | None = None if timers is None else Repeats(
            timers, self._write_repeated, MOST_DENIALS, MOST_DENIAL_BYTES)

    def __len__(self) -> int:
        """Return the number of different denials that are being counted."""
        return 0 if self._repeats is None else len(self._repeats)

    @property
    def held_bytes(self) -> int:
        """The bytes of memory of the denials that are being counted."""
        return 0 if self._repeats is None else self._repeats.held_bytes

    def ledger(self) -> list[Line]:
        return [Line('different denials in the log', 'bytes', lambda: self.held_bytes, lambda: 2 * MOST_DENIAL_BYTES,
                     'later ones are counted together')]

    @property
    def logs_allowed(self) -> bool:
        return logger.isEnabledFor(logging.DEBUG)

    def note(self, access: Any, operation: int, resource_type: int, name: str | None, decision: Any, request: Any,
             quiet: bool) -> None:
        """Log a decision. `quiet` is true if the decision only filters an answer, or fills an optional field of the
        answer.
        """
        if decision.allowed or quiet:
            level = logging.DEBUG if decision.allowed and not quiet else TRACE
            if logger.isEnabledFor(level):
                logger.log(level, '%s', line_of(fields_of(access, operation, resource_type, name, decision, request)))
            return
        self.denials[operation] += 1
        key = str(access.principal), operation, resource_type, name
        repeats = self._repeats
        if repeats is not None and repeats.count(key):
            return
        fields = fields_of(access, operation, resource_type, name, decision, request)
        more_bytes = memory_of_denial(key, fields)
        if repeats is not None and not repeats.has_room(more_bytes):
            key = *key[:3], None
            if repeats.count(key):
                return
            fields['resource'] = f'{ResourceType(resource_type).name}:{OTHERS}'
            more_bytes = memory_of_denial(key, fields)
        self._write(fields)
        if repeats is not None:
            repeats.begin(key, fields, more_bytes)

    def close(self) -> None:
        """Log all counted denials."""
        if self._repeats is not None:
            self._repeats.close()

    def _write_repeated(self, fields: dict[str, Any], repeated: int) -> None:
        self._write(fields | {'repeated': repeated})

    def _write(self, fields: dict[str, Any]) -> None:
        logger.info('%s', line_of(fields))
        self._report(fields)


def memory_of_denial(key: tuple[Any, ...], fields: dict[str, Any]) -> int:
    return DENIAL_BYTES + memory_of(key) + memory_of(tuple(fields.values()))


def fields_of(access: Any, operation: int, resource_type: int, name: str | None, decision: Any,
              request: Any) -> dict[str, Any]:
    """Return {name: value} for the fields of the log line about a decision."""
    return {
        'result': 'allowed' if decision.allowed else 'denied', 'principal': str(access.principal), 'host': access.host,
        'operation': name_of(Operation, operation),
        'resource': f'{name_of(ResourceType, resource_type)}:LITERAL:{name if name is not None else ""}',
        'request': None if request is None else request.api.key.name, 'rule': rule_text(decision.rule)}


def rule_text(rule: Any) -> str:
    """Return the text for the rule that decided: the name of a rule, or a description of an ACL."""
    if isinstance(rule, str):
        return rule
    return (f'{name_of(Permission, rule.permission_type)} {rule.principal} from {rule.host} '
            f'{name_of(Operation, rule.operation)} on {name_of(ResourceType, rule.resource_type)}:'
            f'{name_of(PatternType, rule.pattern_type)}:{rule.resource_name}')


def line_of(fields: dict[str, Any]) -> str:
    """Return the log line of a decision: the result, then `name=value` for each other field that is not None."""
    result, *others = fields.items()
    return ' '.join([result[1], *(f'{name}={quoted(shown(str(value)))}' for name, value in others
                                  if value is not None)])


