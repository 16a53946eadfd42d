"""The parts of kbroker-acls: the conversion of its options to rules and filters, and the places that store ACLs."""
