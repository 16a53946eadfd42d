"""A class for each message of the tables, under Kafka's name: `from kbroker.protocol.messages import EndTxnRequest`.

A class is created on first use. Its constructor takes the fields as keyword arguments; omitted fields get their
defaults. The class of a nested struct, at any depth, is an attribute of its message's class:
`ProduceResponse.PartitionProduceResponse`. A message object has no version. `encode` and `decode` take a version:
`encode` omits fields that the version lacks, and `decode` sets them to their defaults.

The class attributes of a message are:

- `versions`: (first version, last version)
- `flexible_from`: the first flexible version, or schema.NEVER
- `api_key`: the key of a request, a response or a metadata record, otherwise None
- `row_type` and `row_topic`: the type and topic of a coordinator's row, otherwise None
- `schema`: the parsed table
"""
from typing import Any

from kbroker.protocol import schema
from kbroker.protocol.plan import Layout, Message, Plan


def __getattr__(name: str) -> Any:
    if name not in schema.declarations():
        raise AttributeError(f'no table has a message {name}')
    message_class = _message_class(schema.load(name))
    globals()[name] = message_class
    return message_class


def __dir__() -> list[str]:
    return sorted(schema.declarations())


def _message_class(message: schema.Message) -> type[Message]:
    declaration = message.declaration
    is_row = declaration.kind == 'row'
    attributes = {
        'schema': message,
        'versions': (declaration.versions.first, declaration.versions.last),
        'flexible_from': declaration.flexible_from,
        'api_key': None if is_row else declaration.key,
        'row_type': declaration.key if is_row else None,
        'row_topic': declaration.topic,
        '_add_plan': classmethod(
            lambda cls, version: _add_plan(cls, message.struct, version, version >= declaration.flexible_from)
        ),
    }
    classes: dict[str, type[Message]] = {}
    for struct in message.structs.values():
        _nested_class(struct, declaration.name, classes)
    return _struct_class(message.struct, declaration.name, classes, attributes | classes)


def _nested_class(struct: schema.Struct, message_name: str, classes: dict[str, type[Message]]) -> None:
    """Create the class of a struct and add it to `classes`. Create the classes of its nested structs first."""
    if struct.name not in classes:
        for field in struct.fields:
            if field.struct is not None:
                _nested_class(field.struct, message_name, classes)
        classes[struct.name] = _struct_class(struct, f'{message_name}.{struct.name}', classes, {})


def _struct_class(
    struct: schema.Struct, qualified_name: str, classes: dict[str, type[Message]], attributes: dict[str, Any]
) -> type[Message]:
    names = [field.name for field in struct.fields]
    if clash := attributes.keys() & set(names):
        raise schema.TableError(f'{qualified_name}: the field name {sorted(clash)[0]} is taken')
    made: Any = type(
        struct.name,
        (Message,),
        {
            '__slots__': names,
            '__module__': __name__,
            '__qualname__': qualified_name,
            '_plans': {},
            '_classes': classes,
            **attributes,
        },
    )
    made._layout = Layout(made, names, [_default(field, classes) for field in struct.fields])
    created: type[Message] = made
    return created


def _default(field: schema.Field, classes: dict[str, type[Message]]) -> object:
    if isinstance(field.default, schema.Struct):
        return classes[field.default.name]
    return list if field.default == [] else field.default


def _add_plan(struct_class: Any, struct: schema.Struct, version: int, flexible: bool) -> Plan:
    """Return the plan of a struct in a version. The first call creates this plan, and the plans of nested structs."""
    plans: dict[int, Plan] = struct_class._plans
    if version in plans:
        return plans[version]
    steps, tagged, absent = [], [], []
    for index, field in enumerate(struct.fields):
        if version not in field.versions:
            absent.append(index)
            continue
        nested = None
        if field.struct is not None:
            nested = _add_plan(struct_class._classes[field.struct.name], field.struct, version, flexible)
        compact = flexible and not field.inflexible
        step = (index, field.type, field.is_array, field.may_be_null(version), compact, nested)
        if field.tag is not None:
            tagged.append((field.tag, *step))
            absent.append(index)
        else:
            steps.append(step)
    plan = plans[version] = Plan(
        struct_class, flexible, steps, sorted(tagged, key=lambda row: row[0]), absent
    )
    return plan
