"""The options with which a log is opened."""
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
    """The offset below which everything was acknowledged, according to the checkpoint of high watermarks."""
    clean_shutdown: bool = True
    """If False, segments above the recovery point are read whole."""
    expected_end_offset: int = 0
    """After a clean stop, the opening raises CorruptLogError for a log that ends below this offset."""
    distrusted: frozenset[str] = frozenset()
    """The names of damaged files. The opening recovers their segments, and rebuilds files that can be derived from the
    log."""
    keeps_holes: bool = False
    """If True, keep the sound batches of a damaged segment and all segments after it. Otherwise the log ends at the
    damage."""
    refuse_damage: bool = False
    """If True, raise CorruptLogError for damage that recovery would mend by cutting the log."""
    sync_later: bool = False
    """If True, `Log.finish_recovery` syncs the recovered bytes. Otherwise they are durable when the log is open."""
    producer_expiration_ms: int = 86400000
    producer_room: ProducerRoom | None = None
    """The bound on producers that this log shares with other logs. If None, the log has its own bound."""
    removals: Removals | None = None
    """Removes the files of deleted segments file.delete.delay.ms later. If None, the log removes them at once."""
    maker: Callable[[], Iterable[str]] | None = None
    """A function that creates the directory of a new log, and returns the paths of further files that the first flush
    must sync. It is called at the first append or by `Log.make`. None for a log that exists."""
    start_work: Callable[[Generator[None, None, None]], object] = run_to_end
    """Runs work that may be long in slices. The default runs it at once."""
    on_failure: Callable[[KafkaError], object] = lambda failure: None
    """Called once the disk has failed."""
