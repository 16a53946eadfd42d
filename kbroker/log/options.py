"""Options with which a log is opened."""
from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from kbroker.base.errors import KafkaError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.long_work import run_to_end
from kbroker.log.producer_state import ProducerRoom
from kbroker.log.removals import Removals


@dataclass(slots=True)
class LogOptions:
    """The options of one opening, with defaults for a log that was closed cleanly and stands alone."""

    log_start_offset: int = 0
    recovery_point: int = 0
    """Segments that end at or below this offset were synced before the last stop."""
    high_watermark: int = 0
    """Everything below it was acknowledged, as the checkpoint of high watermarks says."""
    clean_shutdown: bool = True
    """False: segments above the recovery point are read whole."""
    expected_end_offset: int = 0
    """After a clean stop, raise CorruptLogError for a log that ends below it."""
    distrusted: frozenset[str] = frozenset()
    """The names of damaged files: their segments are recovered, and what the log can rebuild is rebuilt."""
    keeps_holes: bool = False
    """Keep the segments behind a damaged one, whose sound batches stay. Otherwise the log ends at the damage."""
    refuse_damage: bool = False
    """Raise CorruptLogError for damage that recovery would mend by a cut."""
    sync_later: bool = False
    """Leave recovered bytes to `Log.finish_recovery`. Otherwise they are durable when the log is open."""
    producer_expiration_ms: int = 86400000
    producer_room: ProducerRoom | None = None
    """The bound on producers that this log shares with others. None: it has one of its own."""
    removals: Removals | None = None
    """Removes the files of deleted segments file.delete.delay.ms later. None: they are removed at once."""
    maker: Callable[[], Iterable[str]] | None = None
    """Set for a new log, which touches no file before its first append or `Log.make`. It creates the directory and
    returns the paths of the other files that the first flush has to sync."""
    start_work: Callable[[Generator[None, None, None]], object] = run_to_end
    """Runs work that may be long in slices. The default runs it at once."""
    on_failure: Callable[[KafkaError], object] = lambda failure: None
    """Called once the disk has failed."""
