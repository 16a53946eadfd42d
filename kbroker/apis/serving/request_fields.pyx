"""The reading plans for request_fields.pxd, and the rare cases of its functions.

`compile` translates the codec's plan for one version into one step for each field of the message. The step of a pulled
field points to the fields before it that are skipped. The step for the end of a struct points to the fields after the
last pulled field, which are skipped.
"""
cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int64_t, uint8_t, uint64_t

from kbroker.apis.serving.request_bytes cimport MOST_REQUEST_TAGS, refuse_request, take_length, take_string
from kbroker.protocol.codec cimport find_plan
from kbroker.protocol.plan cimport (
    BOOL, BYTES, FLOAT64, INT8, INT16, INT32, INT64, RECORDS, STRING, STRUCT, UINT16, UUID, Plan, Step,
)
from kbroker.wire.bytes cimport LARGEST_TAG_COUNT, Cursor, take, take_unsigned_varint

from kbroker.base.errors import ProtocolError
from kbroker.protocol import messages, schema

cdef dict of_messages = {}      # RequestFields by the name of the message


class BoundError(ProtocolError):
    """Raised for a request whose arrays have more elements than its API allows."""


cpdef RequestFields fields_of(str message_name):
    """Return the RequestFields of a message. All modules that read this message share one object."""
    if message_name not in of_messages:
        of_messages[message_name] = RequestFields(message_name)
    return of_messages[message_name]


@cython.final
cdef class RequestFields:
    """The fields of a request that modules in C pull, with a plan for each version, which says where they are.

    Each field has a number, which is the offset of its step in each plan, in bytes. The request itself has the number
    0.
    """

    def __cinit__(self, str message_name not None):
        declared = schema.load(message_name)
        if declared.declaration.versions.last >= MOST_VERSIONS:
            raise TypeError(f'{message_name}: versions below {MOST_VERSIONS} expected')
        self.message_name = message_name
        self.places = {}
        self.pulled, self.bounds, self.bound_of, self.kept = set(), [], {}, []
        self._number_fields('', declared.struct)

    def __dealloc__(self):
        for version in range(MOST_VERSIONS):
            PyMem_Free(self.plans[version])

    def _number_fields(self, str before, struct):
        for field in struct.fields:
            path = before + field.name
            self.places[path] = 2 * (len(self.places) + 1) * <Py_ssize_t>sizeof(FieldStep), field
            if field.struct is not None:
                self._number_fields(f'{path}.', field.struct)

    def field(self, str path not None, str type_name not None):
        """Declare a field that the caller will pull from each request, and return its number. Dots in `path` separate
        the names of nested fields.

        `type_name` is the type that the caller reads, in the notation of the message table, for example `int32` or
        `[]int32`. Raise TypeError if the field has another type in the table, or KeyError if the table does not have
        the field.
        """
        number, field = self.places[path]
        found = '[]' * field.is_array + field.type
        if found != type_name or (field.is_array and field.null_versions is not None):
            raise TypeError(f'{self.message_name}: {path} is {found}, {type_name} expected')
        if field.struct is not None and not field.is_array and (field.tag is None or field.null_versions is not None):
            raise TypeError(f'{self.message_name}: {path} is a struct, an array or a tagged struct that is never null '
                            'expected')
        if field.tag is not None:
            if self.pulled_tagged not in (None, path) or '.' in path:
                raise TypeError(f'{self.message_name}: {path} is another tagged field, one of the request expected')
            self.pulled_tagged = path
        self._check_unused()
        self.pulled.add(path)
        return number

    def set_bounds(self, bounds):
        """Set the most elements of the arrays that are pulled. `bounds` is {name: (most elements, *paths)}: the arrays
        with these paths may have this many elements together. Errors show the name."""
        self._check_unused()
        if len(bounds) > MOST_BOUNDS:
            raise TypeError(f'{self.message_name}: {len(bounds)} bounds, {MOST_BOUNDS} expected at most')
        self.bounds = [(what, most) for what, (most, *_) in bounds.items()]
        self.bound_of = {path: place for place, (_, *paths) in enumerate(bounds.values()) for path in paths}
        for place, (_, most) in enumerate(self.bounds):
            self.most[place] = most

    def _check_unused(self):
        """Raise TypeError if a request was read before. Its plan must not change, because requests in flight point into
        the plan."""
        for version in range(MOST_VERSIONS):
            if self.plans[version] != NULL:
                raise TypeError(f'{self.message_name}: requests of version {version} are read already')

    cdef int compile(self, int version) except -1:
        """Create the plan for a version. Raise ProtocolError if the message does not have this version."""
        cdef Plan plan = find_plan(getattr(messages, self.message_name), version)
        cdef FieldStep *steps = <FieldStep *>PyMem_Calloc(2 * (len(self.places) + 1), sizeof(FieldStep))
        if steps == NULL:
            raise MemoryError
        try:
            self.compile_struct(steps, '', schema.load(self.message_name).struct, plan, 0)
        except BaseException:
            PyMem_Free(steps)
            raise
        self.plans[version] = steps
        return 0

    cdef int compile_struct(self, FieldStep *steps, str path, struct, Plan plan, Py_ssize_t number) except -1:
        """Fill in the steps of a struct's fields, and the step for its end, which follows the step with this number."""
        cdef Py_ssize_t i, own, next_step = 0
        cdef FieldStep *field
        cdef FieldStep *end = <FieldStep *>(<char *>steps + number) + 1
        end.pulled_tag = -1
        for declared in struct.fields:
            name = path + declared.name
            own = self.places[name][0]
            field = <FieldStep *>(<char *>steps + own)
            self.set_default(field, declared)
            i = plan.place_of_field(declared.name)
            if i < 0 or name not in self.pulled:
                continue
            self.compile_field(field, name, declared, &plan.steps[i])
            if declared.struct is not None:
                self.compile_struct(steps, f'{name}.', declared.struct, <Plan>plan.steps[i].plan, own)
            if i >= plan.step_count:
                end.pulled_tag = plan.tags[i - plan.step_count]
                field.follows = True
                continue
            field.is_present = True
            field.follows = i == next_step
            skip_steps(field, plan, next_step, i)
            next_step = i + 1
        self.kept.append(plan)
        end.plan = <PyObject *>plan
        end.compact = plan.flexible
        skip_steps(end, plan, next_step, plan.step_count)
        end.is_present = next_step == plan.step_count
        end.follows = end.is_present and not plan.flexible
        return 0

    cdef int compile_field(self, FieldStep *field, str path, declared, const Step *step) except -1:
        field.nullable, field.compact = step.nullable, step.compact
        if declared.is_array:
            if path not in self.bound_of:
                raise TypeError(f'{self.message_name}: {path} has no bound in the declaration of its API')
            field.bound = self.bound_of[path]
            field.least_bytes = step.element_bytes
        return 0

    cdef int set_default(self, FieldStep *field, declared) except -1:
        cdef bytes text
        default = declared.default
        if default is None:
            field.default_number = -1
        elif isinstance(default, (str, bytes)):
            text = default.encode() if isinstance(default, str) else default
            self.kept.append(text)
            field.default_number, field.default_bytes = len(text), text
        elif isinstance(default, int):
            field.default_number = default
        return 0


cdef int skip_steps(FieldStep *field, Plan plan, Py_ssize_t first, Py_ssize_t end) noexcept:
    """Let a step skip the plan's fields number `first` to `end` - 1. If all of them have a fixed size, they are skipped
    together, as a number of bytes."""
    cdef Py_ssize_t i, size = 0
    for i in range(first, end):
        if plan.steps[i].is_array or not fixed_size(plan.steps[i].op):
            field.skipped, field.skipped_count = &plan.steps[first], end - first
            return 0
        size += fixed_size(plan.steps[i].op)
    field.skipped_bytes = size
    return 0


# ---- the rare work of the reader


cdef bint advance(FieldReader *reader, const FieldStep *step) except -1:
    """Skip the fields before a pulled field. If the version lacks the field, return False and skip nothing."""
    if not step.is_present:
        return False
    skip_before(reader, step)
    return True


cdef int skip_before(FieldReader *reader, const FieldStep *step) except -1:
    """Skip the fields before a step."""
    cdef Py_ssize_t i
    take(&reader.cursor, step.skipped_bytes)
    for i in range(step.skipped_count):
        skip_field(&reader.cursor, &step.skipped[i], &reader.tags_left)
    return 0


cdef int end_with_tags(FieldReader *reader, const FieldStep *step) except -1:
    """Skip the remaining fields of a struct, then skip and check its tagged fields. If a tagged field is pulled, set
    `reader.tagged` to its bytes."""
    skip_before(reader, step)
    if step.compact:
        skip_tagged(&reader.cursor, <Plan>step.plan, &reader.tags_left, step.pulled_tag, &reader.tagged)
    return 0


cdef bint open_tagged(FieldReader *reader, FieldReader *inner) noexcept:
    """Prepare `inner` to pull the request's tagged field, or the fields of its struct. Return False if the request does
    not have this tagged field.

    The caller has ended the request with `end_struct`. `inner` has its own position in the bytes.
    """
    if reader.tagged.at == NULL:
        return False
    inner[0] = reader[0]
    inner.cursor = reader.tagged
    return True


cdef int refuse_length(FieldReader *reader, const FieldStep *step, Py_ssize_t length) except -1:
    """Raise ProtocolError for an array whose length is wrong, or for null records."""
    if not step.least_bytes:
        refuse_request('records that are null')
    if length < 0:
        refuse_request(f'an array of {length} elements')
    refuse_request(f'an array of {length} elements of at least {step.least_bytes} bytes, '
                   f'{reader.cursor.end - reader.cursor.at} bytes left')
    return 0


cdef int refuse_count(FieldReader *reader, const FieldStep *step) except -1:
    """Raise BoundError for an array that exceeds a bound of its API."""
    what, most = (<RequestFields>reader.fields).bounds[step.bound]
    raise BoundError(f'found {most - reader.left[step.bound]} {what} or more, expected {most} at most')


# ---- skipping, by the plan of the codec


cdef int fixed_size(int op) noexcept:
    """Return the size in bytes of a value of this type, or 0 if its size varies."""
    if op == INT32:
        return 4
    if op == INT64 or op == FLOAT64:
        return 8
    if op == INT16 or op == UINT16:
        return 2
    if op == BOOL or op == INT8:
        return 1
    return UUID_SIZE if op == UUID else 0


cdef int skip_field(Cursor *cursor, const Step *step, Py_ssize_t *left) except -1:
    """Skip a field. `left` is the number of tagged fields and of array elements without a fixed size that the request
    may still have."""
    cdef Py_ssize_t count
    cdef int size
    if not step.is_array:
        return skip_value(cursor, step, step.nullable, left)
    count = take_length(cursor, step.compact, False)
    if count < 0:
        if not step.nullable:
            refuse_request('null where null is not allowed')
        return 0
    if count * step.element_bytes > cursor.end - cursor.at:
        refuse_request(f'an array of {count} elements of at least {step.element_bytes} bytes, '
                       f'{cursor.end - cursor.at} bytes left')
    size = fixed_size(step.op)
    if size:
        take(cursor, count * size)
        return 0
    if count > left[0]:
        refuse_request(f'found {MOST_REQUEST_TAGS - left[0] + count} elements that are skipped or more, expected '
                       f'{MOST_REQUEST_TAGS} at most')
    left[0] -= count
    for count in range(count, 0, -1):
        skip_value(cursor, step, False, left)
    return 0


cdef int skip_value(Cursor *cursor, const Step *step, bint nullable, Py_ssize_t *left) except -1:
    cdef const uint8_t *text
    cdef Py_ssize_t size = fixed_size(step.op)
    if step.op == STRING:
        take_string(cursor, step.compact, nullable, &text)
    elif step.op == STRUCT:
        if not nullable or <int8_t>take(cursor, 1)[0] >= 0:
            skip_struct(cursor, <Plan>step.plan, left)
    elif step.op == BYTES or step.op == RECORDS:
        size = take_length(cursor, step.compact, False)
        if size < 0 and not nullable:
            refuse_request('null where null is not allowed')
        take(cursor, max(size, <Py_ssize_t>0))
    else:
        take(cursor, size)
    return 0


cdef int skip_struct(Cursor *cursor, Plan plan, Py_ssize_t *left) except -1:
    cdef Py_ssize_t i
    for i in range(plan.step_count):
        skip_field(cursor, &plan.steps[i], left)
    if plan.flexible:
        skip_tagged(cursor, plan, left, -1, NULL)
    return 0


cdef int skip_tagged(Cursor *cursor, Plan plan, Py_ssize_t *left, int64_t pulled_tag, Cursor *pulled) except -1:
    """Skip the tagged fields of a struct, and check the known ones. Set `pulled` to the bytes of the field whose tag is
    `pulled_tag`."""
    cdef uint64_t tag, count = take_unsigned_varint(cursor, 5)
    cdef Py_ssize_t i, size
    cdef Cursor value
    if count > <uint64_t>min(left[0], <Py_ssize_t>LARGEST_TAG_COUNT):
        refuse_request(f'{count} tagged fields, at most {min(left[0], <Py_ssize_t>LARGEST_TAG_COUNT)} expected')
    left[0] -= <Py_ssize_t>count
    while count:
        count -= 1
        tag = take_unsigned_varint(cursor, 5)
        size = <Py_ssize_t>take_unsigned_varint(cursor, 5)
        value.at = take(cursor, size)
        value.end = value.at + size
        for i in range(plan.tag_count):
            if <uint64_t>plan.tags[i] == tag:
                if <int64_t>tag == pulled_tag:
                    pulled[0] = value
                skip_tagged_value(&value, &plan.steps[plan.step_count + i], left)
                if value.at != value.end:
                    refuse_request(f'{value.end - value.at} bytes left over in tag {tag}')
                break
    return 0


cdef int skip_tagged_value(Cursor *value, const Step *step, Py_ssize_t *left) except -1:
    """Skip the value of a tagged field. A varint precedes a nullable struct: 1 if the struct is present, or 0 for
    null."""
    if step.op == STRUCT and step.nullable and not step.is_array:
        return skip_struct(value, <Plan>step.plan, left) if take_unsigned_varint(value, 5) else 0
    return skip_field(value, step, left)
