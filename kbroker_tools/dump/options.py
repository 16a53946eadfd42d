"""The table of kbroker-dump-log's options. The command, its help and the fast start use it.

Most calls name only files and a few options. The fast start parses these calls without a library, because a library
takes longer to load than a small file takes to dump. For all other calls, including wrong ones, `read_plainly` returns
None, and the command parses them.
"""
from __future__ import annotations

from collections.abc import Sequence

from kbroker_tools.rows.releases import RELEASES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

PROGRAM = 'kbroker-dump-log'
STRING_DECODER = 'org.apache.kafka.tools.api.StringDecoder'
MAX_INT32 = (1 << 31) - 1
MAX_FILE_BYTES = 1 << 62
DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024


class Option:
    """An option of the command line. It is not `kbroker.settings.options.Option`, because that import would slow down
    the fast start.

    An option whose `default` is False is a flag. `choices` are the allowed texts. `optional` is the value if the option
    is given without a value. `decoder` names the decoder that the option selects.
    """

    def __init__(self, name: str, help_text: str, default: bool | int | str | None = False, *,
                 metavar: str | None = None, choices: Sequence[str] = (), optional: str | None = None,
                 decoder: str | None = None):
        self.name = name
        self.key = name.replace('-', '_')
        self.help_text = help_text
        self.default = default
        self.metavar = metavar
        self.choices = choices
        self.optional = optional
        self.decoder = decoder
        self.is_flag = default is False
        self.is_number = type(default) is int


OPTIONS = (
    Option('files', 'Files to dump, separated by commas, like the arguments.', None,
           metavar='FILE,FILE,...'),
    Option('print-data-log', 'Print keys and payloads too. Any decoder option implies it.'),
    Option('deep-iteration', 'Print a line for every record. --print-data-log implies it.'),
    Option('verify-index-only', 'Compare index entries with the log and print none.'),
    Option('index-sanity-check', 'Only check indexes as a broker does at its start; it rebuilds those that fail.'),
    Option('max-message-size', 'The most bytes of the log to read for the batch of an index entry.',
           DEFAULT_MAX_MESSAGE_BYTES,
           metavar='BYTES'),
    Option('max-bytes', 'The most bytes to read of each .log.', MAX_INT32, metavar='BYTES'),
    Option('skip-record-metadata', 'Print only keys and payloads of records; control records become empty lines.'),
    Option('value-decoder-class', 'The decoder of payloads: Kafka\'s StringDecoder, IntegerDecoder or LongDecoder.',
           None, metavar='[CLASS]', optional=STRING_DECODER),
    Option('key-decoder-class', 'The decoder of keys, from the same classes.', None, metavar='[CLASS]',
           optional=STRING_DECODER),
    Option('offsets-decoder', 'Decode records of __consumer_offsets.', decoder='offsets'),
    Option('transaction-log-decoder', 'Decode records of __transaction_state.', decoder='transaction'),
    Option('cluster-metadata-decoder', 'Decode records of __cluster_metadata.', decoder='cluster-metadata'),
    Option('remote-log-metadata-decoder', 'Decode records of __remote_log_metadata.', decoder='remote-log-metadata'),
    Option('share-group-state-decoder', 'Decode records of __share_group_state.', decoder='share-group-state'),
    Option('compat', 'Behave exactly like this release of Kafka\'s tool: print its texts and its `-1 is followed by N` '
           'for a log that does not begin at offset 0 (4.3 and 4.4), and stop at the first unreadable batch.', None,
           choices=RELEASES),
    Option('json', 'Print one JSON object for every record or index entry.'),
    Option('payload', 'The form of keys and values in JSON: text, base64 or hex.', 'utf8',
           choices=('utf8', 'base64', 'hex')),
    Option('where', 'Print only records that meet all terms: offset>=100, time=2026-11-20..2026-11-21T06:00, '
           'producer-id=7, transactional, control; joined by `and` or commas. Offsets and times are looked up in '
           'the indexes, so that earlier batches are not read.', None, metavar='TERMS'),
    Option('follow', 'Wait for appended batches and new segments until interrupted.'),
    Option('stats', 'Print a line for every segment: records, bytes, compression, producers, transactions.'),
)
BY_NAME = {option.name: option for option in OPTIONS}
DECODERS = tuple(option for option in OPTIONS if option.decoder)


class DumpOptions:
    """The values of a dump's options, as attributes, and `paths`, the files and directories to dump."""

    files: str | None
    paths: tuple[str, ...]
    print_data_log: bool
    deep_iteration: bool
    verify_index_only: bool
    index_sanity_check: bool
    max_message_size: int
    max_bytes: int
    skip_record_metadata: bool
    value_decoder_class: str | None
    key_decoder_class: str | None
    compat: Literal['4.2', '4.3', '4.4'] | None
    json: bool
    payload: Literal['utf8', 'base64', 'hex']
    where: str | None
    follow: bool
    stats: bool

    def __init__(self, paths: Sequence[str] = (), **values: bool | int | str | None):
        for option in OPTIONS:
            setattr(self, option.key, values.get(option.key, option.default))
        self.paths = tuple(paths)

    @property
    def listed_files(self) -> list[str]:
        """Return the files that --files names."""
        files = (self.files or '').rstrip(',')
        return files.split(',') if files else []

    @property
    def decoder(self) -> str | None:
        """Return the name of the decoder that the options select. If several decoders are selected, return the first
        one."""
        return next((option.decoder for option in DECODERS if getattr(self, option.key)), None)

    @property
    def checks_indexes(self) -> bool:
        """Return True if indexes are only checked, so that their entries are not printed."""
        return self.verify_index_only or self.index_sanity_check

    @property
    def is_limited(self) -> bool:
        """Return True if --max-bytes limits the dump. The default value of --max-bytes means no limit, even for files
        that are larger than it."""
        return self.max_bytes != MAX_INT32

    @property
    def most_file_bytes(self) -> int:
        return self.max_bytes if self.is_limited else MAX_FILE_BYTES

    @property
    def prints_contents(self) -> bool:
        return bool(self.print_data_log or self.decoder or self.value_decoder_class or self.key_decoder_class)

    @property
    def is_deep(self) -> bool:
        return self.deep_iteration or self.prints_contents

    @property
    def is_literal(self) -> bool:
        """Return True if --compat is given. The dump then behaves exactly like Kafka's tool."""
        return self.compat is not None


def read_plainly(arguments: Sequence[str]) -> DumpOptions | None:
    """Parse a simple command line. Return None if only the command can parse it."""
    paths: list[str] = []
    values: dict[str, bool | int | str | None] = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith('-'):
            paths.append(argument)
            continue
        name, has_value, value = argument.removeprefix('--').partition('=')
        option = BY_NAME.get(name)
        if option is None or not argument.startswith('--') or option.optional or (option.is_flag and has_value):
            return None
        if option.is_flag:
            values[option.key] = True
            continue
        value = value if has_value else next(rest, '')
        if (not value or (option.is_number and not _is_int32(value))
                or (option.choices and value not in option.choices)):
            return None
        values[option.key] = int(value) if option.is_number else value
    options = DumpOptions(paths, **values)
    is_plain = bool(options.paths or options.listed_files) and not options.stats        # the command prints tables
    return options if is_plain else None


def _is_int32(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(MAX_INT32)) and int(text) <= MAX_INT32
