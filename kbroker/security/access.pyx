"""The rights of a principal at a host. Decisions are stored, because clients repeat their requests.

Finding a stored decision costs two lookups. A change of the ACLs invalidates all stored decisions: each Access drops
its decisions when it is next called. Clients choose the names for which decisions are stored, so the memory of the
stored decisions is limited.
"""
from cpython.dict cimport PyDict_GetItemWithError
from cpython.tuple cimport PyTuple_GET_ITEM

from kbroker.base.long_work cimport charge
from kbroker.base.object_memory cimport memory_of

cdef extern from "Python.h":
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    OPERATIONS = 16
    RESOURCE_TYPES = 8
    # The bytes of memory of a stored decision, without the name: a slot of a dict. The Decision object itself is not
    # counted: it is shared, or belongs to an ACL.
    REMEMBERED_BYTES = 100
    # Copying, measuring and logging CHARACTERS_OF_AN_ELEMENT characters of a name takes about as long as one element of
    # long work.
    CHARACTERS_OF_AN_ELEMENT = 1024
    MOST_BYTES = 64 * 1024 * 1024
    MOST_BYTES_OF_ONE = 8 * 1024 * 1024


cdef class DecisionCaches:
    """The memory limit of the decisions in all Access objects of an authorizer, and the generation of the ACLs."""

    def __init__(self, authorizer):
        self.authorizer = authorizer
        self.most_bytes = MOST_BYTES
        self.most_bytes_of_one = MOST_BYTES_OF_ONE

    def expire(self):
        """Invalidate all stored decisions, because the ACLs have changed."""
        self.generation += 1

    cdef int make_room(self, Access keep) except -1:
        """Drop the decisions of the oldest Access objects, except `keep`, until an eighth of the allowed memory is
        free.
        """
        cdef Access access
        for access in self.authorizer.accesses():
            if self.held_bytes <= self.most_bytes - self.most_bytes // 8:
                break
            if access is not keep:
                access.forget()
        return 0


cdef class Access:
    """The rights of one principal at one host. All their connections share the object (`Authorizer.access_of`)."""

    def __init__(self, DecisionCaches caches not None, principal, host):
        self.caches = caches
        self.principal = principal
        self.host = host
        self.generation = caches.generation
        self.decisions = [None] * (OPERATIONS * RESOURCE_TYPES)
        self.logs_allowed = caches.authorizer.log.logs_allowed

    def __del__(self):
        self.caches.held_bytes -= self.held_bytes

    def __repr__(self):
        return f'Access({self.principal!s}, {self.host})'

    cpdef bint may(self, int operation, int resource_type, str name, object request=None, bint quiet=False) except -1:
        """Return whether the principal may do the operation on the resource, and log the decision. `request` is for the
        log.

        `quiet` is true for a check that only filters an answer. With the name None there is no resource, so the result
        is False.
        """
        decision = self.decide(operation, resource_type, name)
        if <object>PyTuple_GET_ITEM(decision, 0) is True and not self.logs_allowed:
            return True
        if name is not None:
            charge(PyUnicode_GET_LENGTH(name) // CHARACTERS_OF_AN_ELEMENT)
        self.caches.authorizer.log.note(self, operation, resource_type, name, decision, request, quiet)
        return <object>PyTuple_GET_ITEM(decision, 0) is True

    cpdef bint may_by_type(self, int operation, int resource_type, object request=None) except -1:
        """Return whether the principal may do the operation on at least one possible resource of the type."""
        decision = self.decide(operation, resource_type, ANY_RESOURCE)
        self.caches.authorizer.log.note(self, operation, resource_type, SOME_NAME, decision, request, True)
        return <object>PyTuple_GET_ITEM(decision, 0) is True

    cdef object decide(self, int operation, int resource_type, object name):
        cdef int slot
        cdef void *found
        if not (0 <= operation < OPERATIONS and 0 <= resource_type < RESOURCE_TYPES):
            raise ValueError(f'found operation {operation} on resource type {resource_type}')
        slot = operation * RESOURCE_TYPES + resource_type
        if self.generation != self.caches.generation:
            self.forget()
            self.generation = self.caches.generation
        known = self.decisions[slot]
        if known is not None:
            found = <void *>PyDict_GetItemWithError(known, name)
            if found is not NULL:
                return <object>found
        authorizer = self.caches.authorizer
        if name is None:
            return authorizer.nothing
        if name is ANY_RESOURCE:
            decision = authorizer.decide_by_type(self.principal, self.host, operation, resource_type)
        else:
            decision = authorizer.decide(self.principal, self.host, operation, resource_type, name)
        self.remember(slot, name, decision)
        return decision

    cdef int remember(self, int slot, object name, object decision) except -1:
        cdef Py_ssize_t taken_bytes = REMEMBERED_BYTES + (0 if name is ANY_RESOURCE else memory_of(name))
        if self.held_bytes + taken_bytes > self.caches.most_bytes_of_one:
            self.forget()
        if self.caches.held_bytes + taken_bytes > self.caches.most_bytes:
            self.caches.make_room(self)
            if self.caches.held_bytes + taken_bytes > self.caches.most_bytes:
                return 0
        if self.decisions[slot] is None:
            self.decisions[slot] = {}
        self.decisions[slot][name] = decision
        self.held_bytes += taken_bytes
        self.caches.held_bytes += taken_bytes
        return 0

    cpdef int forget(self) except -1:
        """Forget all decisions."""
        if self.held_bytes:
            self.caches.held_bytes -= self.held_bytes
            self.held_bytes = 0
            self.decisions = [None] * (OPERATIONS * RESOURCE_TYPES)
        return 0


cdef object ANY_RESOURCE = object()     # the name of any resource of a type
cdef str SOME_NAME = 'hardcode'         # its name in Kafka's log
