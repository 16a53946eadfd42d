"""The kinds of columns that `send_batch` accepts."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Slices(NamedTuple):
    """A column of values in one buffer: value i is `data[offsets[i]:offsets[i + 1]]`.

    `offsets` is a buffer of 32-bit or 64-bit integers. It has one more integer than there are values.
    """

    data: Buffer
    offsets: Buffer


class ArrowArray(Protocol):
    """An array of pyarrow or any other library that implements Arrow's C data interface."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


class ArrowChunks(Protocol):
    """A chunked array of pyarrow or any other library that implements Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


if TYPE_CHECKING:
    Column = Sequence[Buffer | None] | Slices | ArrowArray | ArrowChunks
