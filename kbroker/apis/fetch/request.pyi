"""Types of fetch_request.pyx; the documentation stands there."""

def read(
    frame: bytes | bytearray | memoryview, version: int, position: int = 0
) -> tuple[
    tuple[int, int, int, int, int, int, int],
    list[tuple[bytes, list[tuple[int, int, int, int, int]]]],
    list[tuple[bytes, list[int]]],
]: ...
