"""The ACLs of one pattern of resources, and the tree that finds the prefixes of a name.

A decision needs all patterns that cover a resource, and the prefixes among them are in a tree. A node of the tree is a
stored prefix, or a text at which stored prefixes diverge. The lookup of a name follows a path from the root. At each
node, it compares only the character at which prefixes diverge. At the end, one comparison of whole texts shows which
nodes of the path cover the name. So the time of a lookup depends on the length of the path and of the name, not on the
number of prefixes.
"""
cimport cython

from kbroker.base.long_work cimport charge

cdef extern from "Python.h":
    int PyUnicode_KIND(object text)
    void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    Py_UCS4 PyUnicode_READ(int kind, void *data, Py_ssize_t index)

cdef enum:
    DENY = 2
    # A decision has this number of owners if the host of no ACL is a range.
    USUAL_OWNERS = 4
    # One element of long work takes about as long as NODES_OF_AN_ELEMENT nodes of a path, CHARACTERS_OF_AN_ELEMENT
    # characters of a comparison, or OWNERS_OF_AN_ELEMENT lookups of an owner.
    NODES_OF_AN_ELEMENT = 8
    CHARACTERS_OF_AN_ELEMENT = 1024
    OWNERS_OF_AN_ELEMENT = 16


@cython.final
cdef class Rules:
    """The ACLs of one pattern for one principal from one host.

    `denied` and `allowed` have a bit for each operation that an ACL denies or allows. `decisions` maps (operation,
    permission) to decisions. There are several for one key only if ACLs spell the host differently.
    """

    def __init__(self):
        self.decisions = {}

    cdef int add(self, object decision) except -1:
        entry = decision.rule
        key = entry.operation, entry.permission_type
        self.decisions[key] = (*self.decisions.get(key, ()), decision)
        return self.note(entry.operation, entry.permission_type, True)

    cdef bint remove(self, object entry) except -1:
        """Remove an entry. Return whether no entry remains."""
        key = entry.operation, entry.permission_type
        left = tuple([decision for decision in self.decisions[key] if decision.rule is not entry])
        if left:
            self.decisions[key] = left
        else:
            del self.decisions[key]
            self.note(entry.operation, entry.permission_type, False)
        return not self.decisions

    cdef int note(self, int operation, int permission, bint exists) except -1:
        cdef int bit = 1 << operation
        if permission == DENY:
            self.denied = self.denied | bit if exists else self.denied & ~bit
        else:
            self.allowed = self.allowed | bit if exists else self.allowed & ~bit
        return 0

    cdef object find(self, tuple operations, bint denies):
        """Return the decision of an ACL that denies (or else allows) one of these operations, or None."""
        for operation in operations:
            found = self.decisions.get((operation, DENY if denies else DENY + 1))
            if found is not None:
                return found[0]
        return None

    cdef list entries(self):
        return [decision.rule for decisions in self.decisions.values() for decision in decisions]


@cython.final
cdef class AclsOfPattern:
    """The ACLs of one pattern: maps each (principal, host) to its Rules."""

    def __init__(self, tuple pattern not None):
        self.pattern = pattern
        self.owners = {}

    def put(self, decision, tuple owner not None):
        """Add the ACL of a decision. `owner` is the principal and the host of the ACL, converted by `host_key`."""
        cdef Rules rules = self.owners.get(owner)
        if rules is None:
            rules = self.owners[owner] = Rules()
        rules.add(decision)

    def remove(self, entry, tuple owner not None):
        """Remove an ACL. Return whether no ACL remains."""
        cdef Rules rules = self.owners[owner]
        if rules.remove(entry):
            del self.owners[owner]
        return not self.owners

    def entries(self):
        """Yield all ACLs of the pattern."""
        cdef Rules rules
        for rules in list(self.owners.values()):
            yield from rules.entries()

    def entries_of(self, tuple owner not None):
        cdef Rules rules = self.owners.get(owner)
        return [] if rules is None else rules.entries()


cpdef object decide(list patterns, tuple owners, tuple denied_by, tuple allowed_by):
    """Return the decision of the first ACL that decides, or None. `owners` are (principal, host) pairs.

    First, an ACL of these patterns and owners decides if it denies one of the operations `denied_by`. Otherwise, the
    first ACL decides that allows one of the operations `allowed_by`.

    A pattern costs one lookup for each of `owners`, or one for each owner of its ACLs if these are fewer. So the time
    of a decision does not grow with the product of patterns and ranges.
    """
    cdef AclsOfPattern acls
    cdef Rules rules
    cdef int denied = bits_of(denied_by), allowed = bits_of(allowed_by)
    cdef set several = set(owners) if len(owners) > USUAL_OWNERS else None
    cdef Py_ssize_t lookups = 0
    allowing = None
    for acls in patterns:
        candidates = owners
        if several is not None:
            if len(acls.owners) < len(owners):
                candidates = [owner for owner in acls.owners if owner in several]
            lookups += min(<Py_ssize_t>len(acls.owners), <Py_ssize_t>len(owners))
        for owner in candidates:
            rules = acls.owners.get(owner)
            if rules is None:
                continue
            if rules.denied & denied:
                return rules.find(denied_by, True)
            if allowing is None and rules.allowed & allowed:
                allowing = rules.find(allowed_by, False)
    charge(lookups // OWNERS_OF_AN_ELEMENT)
    return allowing


cdef int bits_of(tuple operations) except -1:
    cdef int bits = 0, operation
    for operation in operations:
        bits |= 1 << operation
    return bits


@cython.final
cdef class Node:
    """A node of the tree: it means the first `depth` characters of `text`, a stored prefix.

    `children` maps the next character (its code point) to a node. `acls` is None if the node is not a stored prefix,
    but only a text at which stored prefixes diverge.
    """

    cdef Node child(self, str text):
        """Return the child for the next character of `text`, or None."""
        if self.children is None or self.depth >= PyUnicode_GET_LENGTH(text):
            return None
        return self.children.get(character(text, self.depth))


@cython.final
cdef class PrefixTree:
    """The prefixes of one resource type, each with its ACLs."""

    def __init__(self):
        self.root = node_of('', 0, None)

    def __len__(self):
        """Return the number of nodes, without the root."""
        cdef Node node
        nodes, count = [self.root], -1
        while nodes:
            node = nodes.pop()
            count += 1
            nodes += (node.children or {}).values()
        return count

    def texts(self):
        """Return the texts of all nodes, except the empty text of the root."""
        cdef Node node
        nodes, texts = [self.root], set()
        while nodes:
            node = nodes.pop()
            texts.add(node.text)
            nodes += (node.children or {}).values()
        return texts - {''}

    cpdef put(self, str prefix, AclsOfPattern acls):
        """Add a prefix that is not in the tree."""
        cdef Py_ssize_t length = PyUnicode_GET_LENGTH(prefix), common
        cdef Node node = self.root, child = self.root.child(prefix), branch
        while child is not None:
            node = child
            child = node.child(prefix)
        common = common_length(prefix, node.text, min(length, node.depth))
        node, child = self.root, self.root.child(prefix)
        while child is not None and child.depth <= common:
            node = child
            child = node.child(prefix)
        if node.depth == length:
            node.acls = acls
        elif child is None:
            add_child(node, node_of(prefix, length, acls))
        else:
            branch = node_of(child.text, common, None)
            add_child(node, branch)
            add_child(branch, child)
            if common == length:
                branch.acls = acls
            else:
                add_child(branch, node_of(prefix, length, acls))

    cpdef remove(self, str prefix):
        """Remove a prefix that is in the tree."""
        cdef Py_ssize_t length = PyUnicode_GET_LENGTH(prefix)
        cdef Node node = self.root, parent
        cdef list path = [node]
        cdef Py_ssize_t last
        while node.depth < length:
            node = node.child(prefix)
            path.append(node)
        node.acls = None
        last = len(path) - 1
        if last == 0:
            return
        parent = path[last - 1]
        shrink(parent, node)
        if last > 1 and parent.acls is None and len(parent.children) == 1:
            shrink(path[last - 2], parent)
        for node in reversed(path):         # no node may keep the text of a removed prefix
            if node.acls is not None:
                node.text = node.acls.pattern[2]
            elif node.depth and node.children:
                node.text = (<Node>next(iter(node.children.values()))).text

    cpdef list covering(self, str name):
        """Return the ACLs of the prefixes that cover a name, the shortest first."""
        cdef Py_ssize_t length = PyUnicode_GET_LENGTH(name), common, steps = 0
        cdef Node node = self.root, child = self.root.child(name)
        cdef list found = [] if node.acls is None else [node]
        while child is not None and child.depth <= length:
            node = child
            steps += 1
            if node.acls is not None:
                found.append(node)
            child = node.child(name)
        if steps:
            common = common_length(name, node.text, node.depth)
            charge(steps // NODES_OF_AN_ELEMENT + common // CHARACTERS_OF_AN_ELEMENT)
            while found and (<Node>found[len(found) - 1]).depth > common:
                found.pop()
        return [(<Node>node).acls for node in found]


cdef Node node_of(str text, Py_ssize_t depth, AclsOfPattern acls):
    cdef Node node = Node.__new__(Node)
    node.text = text
    node.depth = depth
    node.acls = acls
    return node


cdef int add_child(Node parent, Node child) except -1:
    if parent.children is None:
        parent.children = {}
    parent.children[character(child.text, parent.depth)] = child
    return 0


cdef int shrink(Node parent, Node node) except -1:
    """Remove a node that has no ACLs from the tree, unless it has two or more children."""
    cdef Py_ssize_t count = 0 if node.children is None else len(node.children)
    if count == 0:
        del parent.children[character(node.text, parent.depth)]
        if not parent.children:
            parent.children = None
    elif count == 1:
        add_child(parent, next(iter(node.children.values())))
    return 0


cdef object character(str text, Py_ssize_t index):
    return <long>PyUnicode_READ(PyUnicode_KIND(text), PyUnicode_DATA(text), index)


cdef Py_ssize_t common_length(str one, str other, Py_ssize_t most) except -1:
    """Return the length of the longest common prefix of two strings, up to `most`. Both have at least `most`
    characters.
    """
    cdef int kind = PyUnicode_KIND(one), other_kind = PyUnicode_KIND(other)
    cdef void *data = PyUnicode_DATA(one)
    cdef void *other_data = PyUnicode_DATA(other)
    cdef Py_ssize_t i = 0
    while i < most and PyUnicode_READ(kind, data, i) == PyUnicode_READ(other_kind, other_data, i):
        i += 1
    return i
