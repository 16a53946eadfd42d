"""Dataclasses without generated source code:

`dataclass`, `field` and `replace`, with the features that the broker needs.

The standard library compiles new functions for each dataclass. For a class of six fields that takes 4.7 million
instructions, and the broker's start would pay it for more than 50 classes. Here all dataclasses share the same
functions, and a class takes 0.13 million instructions. msgspec would take 0.15 million for a class, and another 38
million for its import.
"""
cimport cython
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject, PyObject_GenericSetAttr


cdef object REQUIRED = object()     # the mark of a field without a default


@cython.final
cdef class Factory:
    """The default of a field whose value is created separately for each object."""
    cdef object make


@cython.final
cdef class Fields:
    """The fields of a class, in order, with their defaults."""
    cdef tuple names
    cdef tuple defaults
    cdef bint by_name_only
    cdef bint has_post_init


def field(*, default_factory):
    """Return a default for a field: `default_factory()` creates the value separately for each object."""
    cdef Factory factory = Factory.__new__(Factory)
    factory.make = default_factory
    return factory


def dataclass(cls=None, *, bint frozen=False, bint slots=False, bint kw_only=False):
    """Give a class the methods of a dataclass, like `dataclasses.dataclass`.

    The fields of a class and of its bases are either all positional or all by name only.
    """
    if cls is None:
        return lambda cls: made(cls, frozen, slots, kw_only)
    return made(cls, frozen, slots, kw_only)


def replace(value, /, **changes):
    """Return a copy of a dataclass in which `changes` replace the values of some fields."""
    cdef Fields fields = type(value).__lean_fields__
    for name in fields.names:
        if name not in changes:
            changes[name] = getattr(value, name)
    return type(value)(**changes)


def astuple(value):
    """Return the values of all fields as a tuple."""
    cdef Fields fields = type(value).__lean_fields__
    return tuple([getattr(value, name) for name in fields.names])


cdef object made(cls, bint frozen, bint slots, bint kw_only):
    cdef Fields fields = fields_of(cls, kw_only)
    cdef dict added = {'__lean_fields__': fields, '__match_args__': () if kw_only else fields.names}
    cdef dict methods = {'__init__': _construct, '__repr__': _represent, '__eq__': _equal}
    own_names = own_annotations(cls)
    if frozen:
        methods.update({'__hash__': _hash_of, '__setattr__': _refuse_to_set, '__delattr__': _refuse_to_delete,
                        '__getstate__': astuple, '__setstate__': _restore})
    for name, method in methods.items():
        if name not in cls.__dict__:
            added[name] = method
    if not frozen and cls.__dict__.get('__hash__') is None:
        added['__hash__'] = None
    if not slots:
        for name in own_names:
            if type(cls.__dict__.get(name)) is Factory:
                delattr(cls, name)
        for name, value in added.items():
            setattr(cls, name, value)
        return cls
    namespace = {name: value for name, value in cls.__dict__.items()
                 if name not in own_names and name not in ('__dict__', '__weakref__')}
    for name in own_names:
        if is_of_class(own_names[name]) and name in cls.__dict__:
            namespace[name] = cls.__dict__[name]
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, '__slots__', ())}
    namespace.update(added)
    namespace['__slots__'] = tuple(
        name for name in own_names if not is_of_class(own_names[name]) and name not in inherited)
    again = type(cls)(cls.__name__, cls.__bases__, namespace)
    again.__qualname__ = cls.__qualname__
    return again


cdef dict own_annotations(cls):
    """Return the annotations of a class, without the annotations of its bases.

    Since Python 3.14, this evaluates the annotations, unless the module postpones them. A name that only type checkers
    import remains a forward reference. Importing `annotationlib` would delay the start, so it is imported only for a
    class with a forward reference.
    """
    try:
        return cls.__annotations__
    except NameError:
        from annotationlib import Format, get_annotations
        return get_annotations(cls, format=Format.FORWARDREF)


cdef bint is_of_class(annotation):
    """Return whether an annotation is ClassVar. A name with this annotation is not a field."""
    return str(annotation).startswith(('ClassVar', 'typing.ClassVar'))


cdef Fields fields_of(cls, bint kw_only):
    cdef Fields fields = Fields.__new__(Fields), inherited
    cdef dict found = {}
    for base in cls.__mro__[:0:-1]:
        if '__lean_fields__' in base.__dict__:
            inherited = base.__dict__['__lean_fields__']
            if inherited.by_name_only != kw_only:
                raise TypeError(f'{cls.__name__} and {base.__name__} differ in kw_only')
            found.update(zip(inherited.names, inherited.defaults))
    for name, annotation in own_annotations(cls).items():
        if not is_of_class(annotation):
            found[name] = cls.__dict__.get(name, REQUIRED)
    fields.names, fields.defaults = tuple(found), tuple(found.values())
    fields.by_name_only = kw_only
    fields.has_post_init = hasattr(cls, '__post_init__')
    return fields


# The methods of all dataclasses.


def _construct(self, /, *args, **given):
    """Set the fields to the positional and named arguments, and the fields without an argument to their defaults."""
    cdef Fields fields = type(self).__lean_fields__
    cdef Py_ssize_t i, taken = 0, positional = len(args)
    cdef PyObject *named
    if positional and (fields.by_name_only or positional > len(fields.names)):
        raise TypeError(f'{type(self).__name__} takes {0 if fields.by_name_only else len(fields.names)} positional '
                        f'arguments, found {positional}')
    for i in range(len(fields.names)):
        name = fields.names[i]
        if i < positional:
            value = args[i]
        else:
            named = PyDict_GetItem(given, name)
            if named != NULL:
                value = <object>named
                taken += 1
            else:
                value = fields.defaults[i]
                if value is REQUIRED:
                    raise TypeError(f'{type(self).__name__} needs the field {name!r}')
                if type(value) is Factory:
                    value = (<Factory>value).make()
        PyObject_GenericSetAttr(self, name, value)
    if taken < len(given):
        wrong = [name for name in given if name not in fields.names[positional:]]
        raise TypeError(f'{type(self).__name__} does not take {", ".join(wrong)}')
    if fields.has_post_init:
        self.__post_init__()


def _represent(self):
    """Return the class and its fields in the form of a call of the class."""
    cdef Fields fields = type(self).__lean_fields__
    return f'{type(self).__qualname__}({", ".join([f"{name}={getattr(self, name)!r}" for name in fields.names])})'


def _equal(self, other):
    """Return whether both objects are of one class and all their fields are equal."""
    if type(self) is not type(other):
        return NotImplemented
    return self is other or astuple(self) == astuple(other)


def _hash_of(self):
    """Return a hash of all fields."""
    return hash(astuple(self))


def _refuse_to_set(self, name, _value):
    """Raise AttributeError, because the class is frozen."""
    raise AttributeError(f'cannot assign to field {name!r}')


def _refuse_to_delete(self, name):
    """Raise AttributeError, because the class is frozen."""
    raise AttributeError(f'cannot delete field {name!r}')


def _restore(self, values):
    """Set all fields of a copy, which was created without calling the constructor."""
    cdef Fields fields = type(self).__lean_fields__
    for name, value in zip(fields.names, values, strict=True):
        PyObject_GenericSetAttr(self, name, value)
