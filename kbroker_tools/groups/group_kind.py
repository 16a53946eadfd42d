"""The kinds of groups that have their own command, and code that these commands share."""
from __future__ import annotations

from typing import Any, NamedTuple

from kbroker.base.internal_topics import CONSUMER_OFFSETS
from kbroker.client.descriptions import GroupInfo
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output
from kbroker_tools.base.view import View
from kbroker_tools.cluster.opening import note_incomplete
from kbroker_tools.groups.tables import cell, show, state_words


class GroupKind(NamedTuple):
    """A kind of group: the protocol type, which is also the name of the kind in messages, and the possible states."""

    protocol_type: str
    states: tuple[str, ...]

    def groups(self, view: View) -> list[GroupInfo]:
        """Return the groups of this kind, sorted by name. Groups of a broker come from ListGroups and have no
        members."""
        return sorted((group for group in view.listed_groups() if group.protocol_type == self.protocol_type),
                      key=lambda group: group.group_id)

    def wanted(self, view: View, options: dict[str, Any]) -> list[str]:
        """Return the group ids that --group names, or all group ids of this kind. Raise ToolError if there is none."""
        wanted = sorted(set(options['group'])) or [group.group_id for group in self.groups(view)]
        if not wanted:
            raise ToolError(f'{view.place}: there are no {self.protocol_type} groups')
        return wanted

    def check_missing(self, view: View, missing: list[str]) -> None:
        """Raise ToolError if `missing` has group ids. The message names them."""
        if missing:
            raise ToolError(f'{view.place}: there is no {self.protocol_type} group {", ".join(missing)}; --list shows '
                            'the existing ones')

    def list_groups(self, view: View, output: Output, options: dict[str, Any]) -> None:
        states = state_words(options['state'], self.states) or self.states
        note_incomplete(output, view, CONSUMER_OFFSETS)
        rows = [[group.group_id, group.state] for group in self.groups(view) if group.state in states]
        if options['state'] is not None:
            show(output, [cell('GROUP'), cell('STATE', None)], rows)
        elif output.as_json:
            show(output, [cell('GROUP')], [[group_id] for group_id, _ in rows])
        else:
            for group_id, _ in rows:
                output.line(group_id)

    def delete(self, view: Any, output: Output, options: dict[str, Any]) -> None:
        """Delete groups. Raise ToolError if some were not deleted; the message names them."""
        known = {group.group_id for group in self.groups(view)}
        wanted = sorted(set(options['group'])) or sorted(known)
        errors = [f'there is no {self.protocol_type} group {group_id}' for group_id in wanted if group_id not in known]
        results = view.admin.delete_groups([group_id for group_id in wanted if group_id in known])
        errors += [str(error) for error in results.values() if error is not None]
        deleted = [group_id for group_id, error in results.items() if error is None]
        if output.as_json:
            for group_id in wanted:
                output.row({'group': group_id, 'deleted': group_id in deleted})
        elif deleted:
            names = "', '".join(deleted)
            output.line(f"Deletion of requested {self.protocol_type} groups ('{names}') was successful.")
        if errors:
            raise ToolError('; '.join(errors))
