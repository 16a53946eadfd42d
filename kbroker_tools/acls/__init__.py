"""The parts of kbroker-acls: from its options to rules and filters, and the places that store ACLs."""
