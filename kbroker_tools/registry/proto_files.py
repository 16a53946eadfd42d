"""The files of a Protobuf schema: from a registry, from a file of `protoc`, and the well-known ones."""
from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker_tools.registry.errors import RegistryError, unicode_only
from kbroker_tools.registry.proto_text import compile_text

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

IN_PACKAGES = ('google/protobuf/', 'google/type/')
"""Files that Python packages have. Confluent's serializers do not register them."""
CONFLUENT = {
    'confluent/meta.proto': 'syntax = "proto3"; package confluent;',
    'confluent/type/decimal.proto': 'syntax = "proto3"; package confluent.type; message Decimal { bytes value = 1; '
                                    'uint32 precision = 2; int32 scale = 3; }'}
"""Files that Confluent's serializers do not register either. The first has only options, which are skipped."""
MAIN = 'kbroker/value.proto'
"""The name of the file that a subject has. A registry names only the files that it imports."""


def file_of(name: str, text: str) -> FileDescriptorProto:
    """Return the descriptor in a registry's text: a `.proto` file, or a file descriptor in Base64. Raise RegistryError
    if it is neither."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, DecodeError, ValueError):
        try:
            with unicode_only():
                return compile_text(name, text)
        except RegistryError as error:
            raise RegistryError(f'found a text that is not a .proto file: {error}') from None
    found.name = name
    found.ClearField('source_code_info')
    return found


def files_of(text: str, references: Mapping[str, str]) -> list[FileDescriptorProto]:
    """Return the files of a registered schema, each after those that it imports."""
    return [*(file_of(name, each) for name, each in references.items()), file_of(MAIN, text)]


def files_in(path: Path) -> list[FileDescriptorProto]:
    """Return the files in a descriptor set, as `protoc --descriptor_set_out` writes it. Raise RegistryError if the file
    is not one, and OSError if it cannot be read."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError
    try:
        found = FileDescriptorSet.FromString(path.read_bytes())
    except DecodeError:
        found = FileDescriptorSet()
    if not found.file:
        raise RegistryError(f'found {path}, which has no descriptors of Protobuf, expected the output of protoc '
                            '--descriptor_set_out')
    return list(found.file)


def to_text(files: Iterable[FileDescriptorProto]) -> str:
    """Return the files as one text."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    return base64.b64encode(FileDescriptorSet(file=files).SerializeToString(deterministic=True)).decode()


def from_text(text: str) -> list[FileDescriptorProto]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError
    try:
        return list(FileDescriptorSet.FromString(base64.b64decode(text, validate=True)).file)
    except (binascii.Error, DecodeError, ValueError) as error:
        raise RegistryError(f'found {len(text)} characters that are not descriptors of Protobuf: {error}') from None


def descriptor_of(files: Iterable[FileDescriptorProto], message: str) -> Descriptor:
    """Return the descriptor of a message. Raise RegistryError if the files are wrong or lack it."""
    from google.protobuf.descriptor_pool import DescriptorPool
    pool = DescriptorPool()
    given = {each.name: each for each in files}
    added: set[str] = set()

    def add(name: str, path: tuple[str, ...]) -> None:
        if name in added:
            return
        if name in path:
            raise RegistryError(f'the Protobuf file {name} imports itself')
        file = given.get(name) or _known_file(name)
        for each in file.dependency:
            add(each, (*path, name))
        pool.AddSerializedFile(file.SerializeToString())
        added.add(name)

    try:
        for name in given:
            add(name, ())
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise RegistryError(f'found no message {message}, expected one of {_names(given.values())}') from None
    except TypeError as error:
        raise RegistryError(f'found a wrong Protobuf file: {" ".join(str(error).split())}') from None


def _known_file(name: str) -> FileDescriptorProto:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    if name in CONFLUENT:
        return compile_text(name, CONFLUENT[name])
    if name.startswith(IN_PACKAGES) and name.removesuffix('.proto').replace('/', '').replace('_', '').isalnum():
        try:
            module = importlib.import_module(name.removesuffix('.proto').replace('/', '.') + '_pb2')
        except ImportError:
            needs = 'googleapis-common-protos' if name.startswith('google/type/') else 'protobuf'
            raise RegistryError(f'the schema imports {name}, which the package {needs} has; expected it to be '
                                f'installed: pip install {needs}') from None
        return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    raise RegistryError(f'the schema imports {name}, expected a reference with this name in the registry')


def _names(files: Iterable[FileDescriptorProto]) -> str:
    found = [f'{file.package}.{each.name}' if file.package else each.name for file in files
             for each in file.message_type]
    return ', '.join(found[:10]) + (' ...' if len(found) > 10 else '')
