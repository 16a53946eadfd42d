"""What a log directory must hold beyond its partitions."""
