"""The life of one transactional.id."""
