"""The parser of the message tables.

A table defines a message for all its versions. Each field has one line, which is indented by two spaces for each level
of nesting. `#` starts a comment. A table begins with one of these header lines:

    api 26 EndTxn  versions 0-5  flexible 3+
    row OffsetCommit  topic __consumer_offsets  type 1  versions 0-4  flexible 4+
    record 12 FeatureLevelRecord  versions 0  flexible 0+
    message VotersRecord  versions 0  flexible 0+

An `api` has the sections `request` and `response`, for example EndTxnRequest and EndTxnResponse. A `row` of a
coordinator's topic has the sections `key` and `value`, for example OffsetCommitKey and OffsetCommitValue. A key has
only version 0, and is never flexible. A `record` belongs to `__cluster_metadata`, and has an api key, or to the topic
that the header line names. A line for a field is

    name  type  [versions]  [null versions]  [tag N]  [inflexible]  [= default]

`[]type` is an array. `type?` may be null in all versions, `null 2-7` only in versions 2 to 7. A field without versions
exists in all versions of the message. A tagged field is written only if it differs from its default, to the tag buffer
at the end of a struct in flexible versions (KIP-482). Tags from FIRST_PRIVATE_TAG on are kbroker's own. `inflexible`
strings have no compact length even in flexible versions (the client id in a request header). A capitalised type is a
struct. Its fields are declared one level deeper, below the first field of this type.

Parsing is lazy: the first access only splits the files at their header lines, and the fields of a message are parsed
when the message is first needed.
"""
import functools
import pathlib
import re

from kbroker.base.lean_dataclasses import dataclass, replace

TABLES = pathlib.Path(__file__).with_name('tables')
NEVER = 32767       # above every version of a message
FIRST_PRIVATE_TAG = 10_000
"""The first tag of the fields that Kafka does not have.

Kafka numbers the tags of a struct from 0 on without gaps, so it never gives such a tag another meaning. Its readers
skip unknown tags.
"""

PRIMITIVES: dict[str, object] = {
    'bool': False,
    'int8': 0,
    'int16': 0,
    'uint16': 0,
    'int32': 0,
    'int64': 0,
    'float64': 0.0,
    'uuid': bytes(16),
    'string': '',
    'bytes': b'',
    'records': None,
}

HEADER = re.compile(
    r'(?P<kind>api|row|record|message) +(?:(?P<key>\d+) +)?(?P<name>[A-Z]\w+)'
    r'(?: +topic +(?P<topic>\w+) +type +(?P<type>\d+))?'
    r' +versions +(?P<versions>[\d-]+) +flexible +(?P<flexible>\d+\+|never)'
)
FIELD = re.compile(
    r'(?P<indent> +)(?P<name>[a-z]\w*) +(?P<array>\[\])?(?P<type>\w+)(?P<null>\?)?(?: +(?P<versions>\d+(?:-\d+|\+)))?'
    r'(?: +null +(?P<null_versions>\d+(?:-\d+|\+)))?(?: +tag +(?P<tag>\d+))?'
    r'(?: +(?P<inflexible>inflexible))?(?: += +(?P<default>\S+))?'
)
SECTIONS = {'api': {'request': 'Request', 'response': 'Response'}, 'row': {'key': 'Key', 'value': 'Value'}}


class TableError(Exception):
    """Raised if a table violates the syntax in the module's docstring. The error message names the line."""


@dataclass(frozen=True)
class Versions:
    """An inclusive range of versions."""
    first: int = 0
    last: int = NEVER

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


@dataclass
class Field:
    name: str
    type: str                   # a key of PRIMITIVES, or 'struct'
    is_array: bool
    struct: 'Struct | None'
    versions: Versions
    null_versions: Versions | None
    tag: int | None
    inflexible: bool
    default: object             # None, a number, text, bytes; [] for an array; for a non-null struct a new one

    @property
    def is_private(self) -> bool:
        """True if Kafka does not have this field."""
        return self.tag is not None and self.tag >= FIRST_PRIVATE_TAG

    def may_be_null(self, version: int) -> bool:
        return self.null_versions is not None and version in self.null_versions


@dataclass
class Struct:
    name: str
    fields: list[Field]


@dataclass(frozen=True)
class Declaration:
    """A parsed header line of a table, with the unparsed lines below it."""
    kind: str                   # api, row, record, message
    name: str                   # of the message: EndTxnRequest
    key: int | None             # the api key of an api or record, the type of a row
    topic: str | None           # of a row
    versions: Versions
    flexible_from: int          # NEVER if no version is flexible
    lines: list[tuple[str, int, str]]   # (file, number, line)


@dataclass
class Message:
    declaration: Declaration
    struct: Struct
    structs: dict[str, Struct]          # the nested ones by name, in the order of the table


@functools.cache
def declarations() -> dict[str, Declaration]:
    """Return {message name: Declaration} for all messages of all tables."""
    found: dict[str, Declaration] = {}
    for path in sorted(TABLES.glob('*.txt')):
        for declaration in _split(path.name, path.read_text('utf-8')):
            if declaration.name in found:
                raise TableError(f'{path.name}: {declaration.name} is declared twice')
            found[declaration.name] = declaration
    return found


@functools.cache
def load(name: str) -> Message:
    """Parse and return the message. Raise KeyError if no table has it, or TableError if its table is invalid."""
    return parse(declarations()[name])


def flexible_from(name: str) -> int:
    """Return the first flexible version of the message. Raise KeyError if no table has it."""
    return declarations()[name].flexible_from


def first_version(name: str, path: str) -> int:
    """Return the first version of the message that has the field. Dots in `path` separate the names of nested fields.

    Raise KeyError if no table has the message, or the message does not have the field.
    """
    struct: Struct | None = load(name).struct
    for part in path.split('.'):
        fields = {} if struct is None else {field.name: field for field in struct.fields}
        struct = fields[part].struct
    return fields[part].versions.first


def _split(file: str, text: str) -> list[Declaration]:
    found: list[Declaration] = []
    header: Declaration | None = None
    current: Declaration | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition('#')[0].rstrip()
        if not line:
            continue
        if line[0] == ' ':
            if current is None:
                raise TableError(f'{_where(file, number, line)}: a field outside a message')
            current.lines.append((file, number, line))
            continue
        if header is not None and line in SECTIONS.get(header.kind, {}):
            current = _section(header, line)
        else:
            header = _header(_where(file, number, line), line)
            current = None if header.kind in SECTIONS else header
        if current is not None:
            found.append(current)
    return found


def _where(file: str, number: int, line: str) -> str:
    """Return the place of a line for an error message."""
    return f'{file}:{number}: {line.strip()}'


def _section(header: Declaration, section: str) -> Declaration:
    name = header.name + SECTIONS[header.kind][section]
    if section == 'key':                # the keys of rows have only version 0
        return replace(header, name=name, lines=[], versions=Versions(0, 0), flexible_from=NEVER)
    return replace(header, name=name, lines=[])


def _header(where: str, line: str) -> Declaration:
    match = HEADER.fullmatch(line)
    if match is None:
        raise TableError(f'{where}: neither a header nor a section')
    key = match['type'] or match['key']
    flexible_from = NEVER if match['flexible'] == 'never' else int(match['flexible'][:-1])
    return Declaration(
        match['kind'],
        match['name'],
        None if key is None else int(key),
        match['topic'],
        _versions(match['versions']),
        flexible_from,
        [],
    )


@functools.cache
def _versions(text: str | None) -> Versions:
    """Parse a range of versions. The tables have few different ones, and a start parses a thousand."""
    if text is None:
        return Versions()
    if text.endswith('+'):
        return Versions(int(text[:-1]))
    first, _, last = text.partition('-')
    return Versions(int(first), int(last or first))


def parse(declaration: Declaration) -> Message:
    """Parse the fields of a message. Raise TableError if a line is invalid."""
    root = Struct(declaration.name, [])
    structs: dict[str, Struct] = {}
    open_structs = [(0, root)]                      # (indent of the field that names it, struct)
    for place in declaration.lines:
        match = FIELD.fullmatch(place[2])
        if match is None:
            raise TableError(f'{_where(*place)}: not a field')
        indent = len(match['indent'])
        while open_structs[-1][0] >= indent:
            open_structs.pop()
        if indent != open_structs[-1][0] + 2:
            raise TableError(f'{_where(*place)}: indented by {indent}, expected {open_structs[-1][0] + 2}')
        parent = open_structs[-1][1]
        struct = None
        if match['type'] not in PRIMITIVES:
            if any(match['type'] == each.name for _, each in open_structs):
                raise TableError(f'{_where(*place)}: {match["type"]} within itself')
            struct = structs.get(match['type'])
            if struct is None:
                struct = structs[match['type']] = Struct(match['type'], [])
                open_structs.append((indent, struct))
        if any(match['name'] == field.name for field in parent.fields):
            raise TableError(f'{_where(*place)}: named twice in {parent.name}')
        parent.fields.append(_field(place, match, struct))
    for each in structs.values():
        if not each.fields:
            raise TableError(f'{declaration.name}: {each.name} has no fields')
    return Message(declaration, root, structs)


def _field(place: tuple[str, int, str], match: re.Match[str], struct: Struct | None) -> Field:
    null_versions = None
    if match['null'] or match['null_versions']:
        null_versions = _versions(match['null_versions'])
    type_name = 'struct' if struct is not None else match['type']
    default: object
    if match['default'] == 'null':
        if null_versions is None:
            raise TableError(f'{_where(*place)}: null by default, but never null')
        default = None
    elif match['array']:
        default = []
    elif struct is not None:
        default = struct
    elif match['default'] is None:
        default = PRIMITIVES[type_name]
    elif type_name == 'bool':
        default = match['default'] == 'true'
    elif type_name.startswith(('int', 'uint')):
        default = int(match['default'], 0)
    elif type_name == 'string':
        default = match['default']
    else:
        raise TableError(f'{_where(*place)}: no default for {type_name}')
    return Field(
        match['name'], type_name, match['array'] is not None, struct, _versions(match['versions']), null_versions,
        None if match['tag'] is None else int(match['tag']), match['inflexible'] is not None, default,
    )
