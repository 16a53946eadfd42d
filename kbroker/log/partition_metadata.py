"""Reads and writes `partition.metadata`, which has the topic id of a partition directory."""
import base64
import binascii
import os
import re

from kbroker.base.errors import CorruptLogError
from kbroker.log.fs import SMALL_FILE_BYTES, File, FileSystem

FILE_NAME = 'partition.metadata'
TOPIC_ID_BYTES = 16
NO_TOPIC_ID = bytes(TOPIC_ID_BYTES)
_BEGINNING = 'version: 0\ntopic_id: '
_TORN_ID = re.compile(re.escape(_BEGINNING) + '[a-zA-Z0-9_-]{1,21}')


def format_uuid(uuid: bytes) -> str:
    """Return Kafka's text form of 16 bytes: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(uuid).decode().rstrip('=')


def parse_uuid(text: str) -> bytes:
    """Return the 16 bytes of a UUID in Kafka's text form. Raise ValueError if `text` is not in this form."""
    try:
        uuid = base64.urlsafe_b64decode(text + '==')
    except binascii.Error as error:
        raise ValueError(f'found {text!r}, expected 22 characters of URL-safe base64') from error
    if len(uuid) != TOPIC_ID_BYTES or format_uuid(uuid) != text:
        raise ValueError(f'found {text!r}, expected 22 characters of URL-safe base64')
    return uuid


def read_topic_id(fs: FileSystem, directory: str) -> bytes | None:
    """Return the topic id, None if the file is missing or cut short. Raise CorruptLogError.

    A power cut before the first flush of a new partition can cut the file short. In this case the partition has no
    acknowledged record.
    """
    path = os.path.join(directory, FILE_NAME)
    try:
        text = fs.read_file(path, SMALL_FILE_BYTES).decode('utf-8', 'replace').rstrip('\0')
    except FileNotFoundError:
        text = ''
    if _BEGINNING.startswith(text) or _TORN_ID.fullmatch(text):
        return None
    match = re.fullmatch(r'version: *(\d+)\r?\ntopic_id: *(\S+)\s*', text)
    try:
        topic_id = parse_uuid(match[2]) if match else NO_TOPIC_ID
    except ValueError as error:
        raise CorruptLogError(f'{path}: {error}') from error
    if topic_id == NO_TOPIC_ID:
        raise CorruptLogError(f'{path}: found {text!r}, expected a version and a topic id that is not zero')
    return topic_id


def write_topic_id(fs: FileSystem, directory: str, topic_id: bytes) -> File:
    """Write the file and return it. The partition's next flush must sync it. Call this only if the file is missing or
    cut short.
    """
    return fs.write_file(os.path.join(directory, FILE_NAME), f'{_BEGINNING}{format_uuid(topic_id)}'.encode())
