"""ACLs for the command: from its options to rules and filters, and the places that have them."""
