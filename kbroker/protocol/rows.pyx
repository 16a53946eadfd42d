"""Encodes and decodes the keys and values of rows, which are records in the coordinators' topics.

A key is an int16, the type of the row, then the row's key message in version 0. The types of `__consumer_offsets`,
`__transaction_state` and `__share_group_state` overlap, so decoding a key requires its topic. A value is an int16, the
version, then the row's value message in this version. A null value is a tombstone, and is never decoded.
"""
import functools

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, uint8_t

from kbroker.protocol.codec cimport decode_some, encode_some, find_writing_plan
from kbroker.wire.bytes cimport read_int16, write_int16

from kbroker.base.errors import ProtocolError
from kbroker.protocol import messages, schema
from kbroker.protocol.slices import encode_in_slices

cdef enum:
    TYPE_SIZE = 2

TYPE_BYTES = TYPE_SIZE

cdef dict key_prefixes = {}     # the encoded type of the row, by the class of the key


class RowError(ValueError):
    """Raised if a key or value does not parse, or has a version that this broker does not know."""


class NewerRowError(RowError):
    """Raised if a value has a version that only a later release knows."""


@functools.cache
def row_classes(topic):
    """Return {row type: (key class, value class)} for the rows of a topic."""
    return {
        declaration.key: (
            getattr(messages, declaration.name), getattr(messages, declaration.name.removesuffix('Key') + 'Value')
        )
        for declaration in schema.declarations().values()
        if declaration.kind == 'row'
        and declaration.topic == topic
        and declaration.name.endswith('Key')
        and declaration.key is not None
    }


def encode_row_key(key) -> bytes:
    """Encode a key. Raise EncodeError as `codec.encode` does."""
    prefix = key_prefixes.get(type(key))
    if prefix is None:
        prefix = key_prefixes[type(key)] = prefix_of(key)
    return encode_some(key, 0, prefix, None).close_segment()


cdef bytes prefix_of(key):
    if key.row_type is None or key.row_topic is None or row_classes(key.row_topic)[key.row_type][0] is not type(key):
        raise TypeError(f'{type(key).__name__} is not the key of a row')
    return int16_bytes(key.row_type)


cdef bytes int16_bytes(int number):
    cdef bytes written = PyBytes_FromStringAndSize(NULL, TYPE_SIZE)
    write_int16(<uint8_t *>PyBytes_AS_STRING(written), <int16_t>number)
    return written


def encode_row_value(value, int version) -> bytes:
    """Encode a value in the given version. Raise EncodeError as `codec.encode` does."""
    return encode_some(value, version, int16_bytes(version), None).close_segment()


def encode_row_value_in_slices(value, int version):
    """Encode a value as `encode_row_value` does, but in parts. A generator that returns the bytes. Raise EncodeError as
    `codec.encode` does.

    A value without arrays is encoded in one part.
    """
    if not find_writing_plan(value, version).has_arrays:
        return encode_row_value(value, version)
    return b''.join((yield from encode_in_slices(value, version, int16_bytes(version))))


def decode_row_key(topic, data):
    """Decode the key of a row of `topic`. Return None if the type of the row is unknown: a newer broker may have
    written it, and the caller must skip it.

    Raise RowError if the type is known and the bytes do not parse.
    """
    classes = row_classes(topic).get(first_int16(data, 'key'))
    return None if classes is None else decode_rest(classes[0], data, 0)


def decode_row_value(value_class, data):
    """Decode a value. Raise RowError if the bytes do not parse, or `value_class` does not have their version. The error
    is a NewerRowError if the version is above the known ones.
    """
    cdef int version = first_int16(data, value_class)
    first, last = value_class.versions
    if version > last:
        raise NewerRowError(f'found {value_class.__name__} of version {version}, expected at most {last}: only the '
                            'release of Apache Kafka or kbroker that wrote it, or a later one, can open the directory')
    if version < first:
        raise RowError(f'{value_class.__name__} version {version} found, {first} to {last} expected')
    return decode_rest(value_class, data, version)


cdef int first_int16(data, what) except? -1:
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < TYPE_SIZE:
            name = what if isinstance(what, str) else what.__name__
            raise RowError(f'{name} of {view.len} bytes, at least {TYPE_SIZE} expected')
        return read_int16(<const uint8_t *>view.buf)
    finally:
        PyBuffer_Release(&view)


cdef object decode_rest(message_class, data, int version):
    cdef Py_ssize_t end
    try:
        return decode_some(message_class, data, version, TYPE_SIZE, True, &end)
    except ProtocolError as error:
        raise RowError(str(error)) from None
