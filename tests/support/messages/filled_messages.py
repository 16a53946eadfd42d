"""Messages with a value in every field. Tests compare how programs read and print these messages."""
import random

from kbroker.protocol import messages, schema
from kbroker.protocol.plan import Message


def filled(message_class: type[Message], version: int, random_source: random.Random) -> Message:
    """Return a message with a value in every field of the version. The values are also valid for kio's types."""
    def fill(struct: schema.Struct, struct_class: type[Message]) -> Message:
        return struct_class(**{field.name: value(field) for field in struct.fields if version in field.versions})

    def value(field: schema.Field):
        if field.may_be_null(version) and random_source.random() < 0.2:
            return None
        if field.is_array:
            return [one(field) for _ in range(random_source.randrange(4))]
        return one(field)

    def one(field: schema.Field):
        if field.struct is not None:
            return fill(field.struct, getattr(message_class, field.struct.name))
        if field.type == 'bool':
            return random_source.random() < 0.5
        if field.type == 'float64':
            return random_source.randrange(1000) / 8
        if field.type == 'uuid':
            return random_source.randbytes(16)
        if field.type == 'string':
            return random_source.choice(('', 'topic', 'é' * 70, 'a longer string ' * 9))
        if field.type in ('bytes', 'records'):
            return random_source.randbytes(random_source.choice((0, 5, 200)))
        if 'error_code' in field.name:
            # kafka-python reads an ApiVersions response with an error as a body of version 0, so this message has no
            # error.
            return 0 if message_class is messages.ApiVersionsResponse else random_source.choice((0, 35, 90))
        return random_source.randrange(100)

    return fill(message_class.schema.struct, message_class)
