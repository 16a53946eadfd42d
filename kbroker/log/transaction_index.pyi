"""Types of transaction_index.pyx, which has the documentation."""
from struct import Struct
from typing import NamedTuple

from kbroker.log.fs import File, FileSystem

ENTRY = Struct('>hqqqq')
VERSION: int

class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

class TransactionIndex:
    path: str
    exists: bool
    def __init__(self, fs: FileSystem, path: str, base_offset: int, *, exists: bool) -> None: ...
    @property
    def rows(self) -> list[AbortedTransaction]: ...
    def append(self, row: AbortedTransaction) -> None: ...
    def collect(self, fetch_offset: int, upper_bound_offset: int) -> tuple[list[AbortedTransaction], bool]: ...
    def truncate_to(self, offset: int) -> None: ...
    def reset(self) -> None: ...
    def check(self) -> None: ...
    def file(self) -> File: ...
