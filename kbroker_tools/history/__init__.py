"""The history of one transactional.id."""
