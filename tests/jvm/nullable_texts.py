"""The nullable strings of responses: those that the message tables declare, and those that observed answers contain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raw_peer import is_worded

from kbroker.apis.serving.served import served_apis
from kbroker.protocol import messages, schema

Text = tuple[str, int, str]
"""(name of a response, version, path of a field)."""


def of_the_tables() -> set[Text]:
    """Return each nullable string of each response, in each served version."""
    found = set()
    for api in served_apis():
        name = api.request_class.__name__.removesuffix('Request') + 'Response'
        for version in range(api.min_version, api.max_version + 1):
            struct = getattr(messages, name).schema.struct
            found |= {(name, version, path) for path in _declared(struct, version)}
    return found


def _declared(struct: schema.Struct, version: int, path: str = '') -> Iterator[str]:
    for field in struct.fields:
        if version in field.versions:
            if field.struct is not None:
                yield from _declared(field.struct, version, f'{path}{field.name}.')
            elif field.type == 'string' and not field.is_array and field.may_be_null(version):
                yield path + field.name


def of_an_answer(answer: Any, version: int) -> set[Text]:
    """Return those nullable strings of an answer that are compared. Messages of errors are not compared."""
    name = type(answer).__name__
    return {(name, version, path) for path in _shown(answer, answer.schema.struct, version)}


def _shown(value: Any, struct: schema.Struct, version: int, path: str = '') -> Iterator[str]:
    for field in struct.fields:
        if version not in field.versions:
            continue
        item = getattr(value, field.name)
        if field.struct is not None:
            for each in item if isinstance(item, list) else [item] if item is not None else []:
                yield from _shown(each, field.struct, version, f'{path}{field.name}.')
        elif field.type == 'string' and field.may_be_null(version) and not is_worded(value, field.name):
            yield path + field.name
