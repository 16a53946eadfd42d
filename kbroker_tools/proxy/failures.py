"""Error responses to any request, built from the message tables.

An error is put into each field of the response whose name ends with `error_code`. An array whose rows have errors gets
a row for each row of the request's array that has the same keys, such as the name of a topic or a partition.
"""
from __future__ import annotations

from typing import Any

from kbroker.base.errors import ErrorCode
from kbroker.protocol import schema
from kbroker_tools.proxy.addresses import request_class, response_class

KEYS = (
    ('name', 'topic', 'topic_name', 'topic_names'),
    ('topic_id',),
    ('partition_index', 'partition', 'index', 'partition_id', 'partitions', 'partition_indexes'),
    ('group_id', 'groups', 'group_ids', 'groups_names'),
    ('transactional_id', 'transactional_ids'),
    ('producer_id',),
    ('member_id',),
    ('key', 'coordinator_keys'),
    ('resource_name',),
)
"""The fields that name the same thing in a request and in its response. The plural is an array of such names."""
ALSO_COPIED = ('resource_type', 'group_instance_id')
WITHOUT_ERROR = ('acknowledge_error_code', 'topic_config_error_code')
"""Fields for errors of a part, which stay empty when all of the request fails."""
MISSING = -1


class Unanswerable(ValueError):
    """Raised if the tables do not say where a response has its error."""


def error_response(request: Any, key: int, version: int, code: ErrorCode, message: str = '') -> Any:
    """Return the response with an error to a decoded request. Raise Unanswerable if it has no place for it."""
    cls = response_class(key)
    response = cls()
    if not _fill(cls, cls.schema.struct, response, request, version, code, message) and not can_fail(key, version):
        raise Unanswerable(f'the response of API {key}, version {version}, has no place for an error')
    return response


def can_fail(key: int, version: int) -> bool:
    """Return whether the response of an API has a place for an error that answers the whole request."""
    asked, cls = request_class(key), response_class(key)
    return cls is not None and _has_place(asked.schema.struct, cls.schema.struct, version)


def _has_place(asked: schema.Struct, struct: schema.Struct, version: int) -> bool:
    fields = [field for field in struct.fields if version in field.versions]
    if any(_is_error(field) for field in fields):
        return True
    return any(field.struct is not None and field.is_array and _has_errors(field.struct, version)
               and _source(asked, field.struct, version) is not None for field in fields)


def _fill(cls: Any, struct: schema.Struct, row: Any, asked: Any, version: int, code: ErrorCode, message: str) -> bool:
    """Put the error into a struct of the response, and into the arrays below it. Return whether it has a place."""
    has_place = False
    for field in struct.fields:
        if version not in field.versions:
            continue
        if _is_error(field):
            setattr(row, field.name, int(code))
            has_place = True
        elif field.name == 'error_message' and message:
            setattr(row, field.name, message)
        elif field.name in ('base_offset', 'high_watermark', 'low_watermark', 'producer_id', 'controller_id'):
            setattr(row, field.name, MISSING)
        elif field.type == 'records' and not field.may_be_null(version):
            setattr(row, field.name, b'')
        elif field.struct is not None and field.is_array and _has_errors(field.struct, version):
            rows = _rows(cls, field.struct, asked, version, code, message)
            if rows is not None:
                setattr(row, field.name, rows)
                has_place = has_place or bool(rows)
    return has_place


def _is_error(field: schema.Field) -> bool:
    return field.type == 'int16' and field.name.endswith('error_code') and field.name not in WITHOUT_ERROR


def _has_errors(struct: schema.Struct, version: int) -> bool:
    return any(version in field.versions and (_is_error(field) or (
        field.struct is not None and field.is_array and _has_errors(field.struct, version)))
        for field in struct.fields)


def _source(asked: schema.Struct, struct: schema.Struct, version: int) -> schema.Field | None:
    """Return the array of the request whose rows have the keys of a struct of the response."""
    wanted = {number for number, names in enumerate(KEYS)
              for field in struct.fields if version in field.versions and field.name in names and not field.is_array}
    for field in asked.fields:
        if version not in field.versions or not field.is_array:
            continue
        if field.struct is None:
            if any(number in wanted and field.name in names for number, names in enumerate(KEYS)):
                return field
        elif wanted & {number for number, names in enumerate(KEYS) for each in field.struct.fields
                       if version in each.versions and each.name in names and not each.is_array}:
            return field
    return None


def _rows(cls: Any, struct: schema.Struct, asked: Any, version: int, code: ErrorCode, message: str
          ) -> list[Any] | None:
    """Return a row with the error for each row of the request. Return None if the request has no such array."""
    asked_struct = _struct_of(asked)
    source = None if asked_struct is None else _source(asked_struct, struct, version)
    if source is None:
        return None
    rows = []
    for element in getattr(asked, source.name) or ():
        row = getattr(cls, struct.name)()
        _copy_keys(struct, row, element, source.name, version)
        _fill(cls, struct, row, element, version, code, message)
        rows.append(row)
    return rows


def _struct_of(message: Any) -> schema.Struct | None:
    """Return the struct of a message or of a part of it."""
    cls = type(message)
    if hasattr(cls, 'schema'):
        found: schema.Struct = cls.schema.struct
        return found
    return _STRUCTS.get(cls) if cls in _STRUCTS else _find_struct(cls)


_STRUCTS: dict[type, schema.Struct] = {}


def _find_struct(cls: Any) -> schema.Struct | None:
    """Return the struct of a nested class, whose qualified name begins with that of its message."""
    message_name, _, name = getattr(cls, '__qualname__', '').partition('.')
    if message_name not in schema.declarations():
        return None
    return _STRUCTS.setdefault(cls, schema.load(message_name).structs[name])


def _copy_keys(struct: schema.Struct, row: Any, element: Any, source: str, version: int) -> None:
    """Copy the keys of a row of the request, or the element itself if it is a number or a text."""
    for field in struct.fields:
        if version not in field.versions or field.is_array:
            continue
        names = next((names for names in KEYS if field.name in names), ())
        if isinstance(element, (int, str)):
            if source in names:
                setattr(row, field.name, element)
            continue
        for name in (*names, field.name) if names else (field.name,) if field.name in ALSO_COPIED else ():
            value = getattr(element, name, None)
            if isinstance(value, (int, str, bytes)):
                setattr(row, field.name, value)
                break
