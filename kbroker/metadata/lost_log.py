"""The proof that the metadata log has lost records.

With an empty metadata log, a directory looks like that of an empty cluster: every partition would be set aside, and
producer ids would be assigned again. So a start compares the log with the other files of the directory before it writes
anything.
"""
from __future__ import annotations

from kbroker.log.partition_metadata import format_uuid
from kbroker.log.verification import Past
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.quorum_log import QuorumLog

NAMED_DIRECTORIES = 3


def proof_of_loss(past: Past, log: QuorumLog, image: MetadataImage) -> str | None:
    """Return a text that says what was found and what was expected if the log has lost records.

    Without a proof of a loss, return None.

    An unknown topic id in a partition directory proves a loss only if the log begins at offset 0. Otherwise a snapshot
    replaces the beginning of the log, and a snapshot does not name the topics that were deleted there.
    """
    if past.is_accepted:
        return None
    if log.end_offset < past.metadata_end_offset:
        return (f'found the end of the metadata log at offset {log.end_offset}, expected at least '
                f'{past.metadata_end_offset} as after an earlier clean stop')
    if past.trace is not None and not log.exists:
        return (f'found no such directory beside {past.trace}, expected the metadata log: it is lost, or this is one '
                'of several log directories of a broker (log.dirs), and another one has it')
    if log.end_offset == 0 and past.trace is not None:
        return f'found an empty metadata log beside {past.trace}, expected the records of the broker that wrote it'
    lost = []
    if log.is_complete:
        for (name, partition), topic_id in past.topic_ids.items():
            topic = image.topics_by_id.get(topic_id)
            is_known = topic_id in log.removed_topics if topic is None else (
                topic.name != name or topic.has_partition(partition))
            if not is_known:
                lost.append((f'{name}-{partition}', topic_id))
    if not lost:
        return None
    named = ', '.join(f'{directory} (topic id {format_uuid(topic_id)})' for directory, topic_id in
                      lost[:NAMED_DIRECTORIES])
    more = f' and {len(lost) - NAMED_DIRECTORIES} more' if len(lost) > NAMED_DIRECTORIES else ''
    return f'found the partition directories {named}{more}, which no record of the metadata log ever named'


def recovery_advice(log: QuorumLog, log_dir: str) -> str:
    """Return the advice to the operator, which is printed after the proof of a loss."""
    if not log.exists:
        return ('Nothing was changed. kbroker serves one log directory, with all partitions of the broker. If the '
                f'metadata log is lost, restore {log.directory} from a backup that was taken together with the '
                f'partitions. If there is none, kbroker-check --accept {log_dir} lets the next start begin without: '
                'the partitions are then renamed to -stray and not served')
    return (f'Nothing was changed. Restore {log.directory} from a backup that was taken together with the partitions. '
            f'If there is none, kbroker-check --accept {log_dir} lets the next start take the metadata as it is: '
            'partitions of unknown topics are then renamed to -stray and not served')
