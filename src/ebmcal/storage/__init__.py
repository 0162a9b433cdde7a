"""What lies on disk: written whole or not at all, with checksums, by one process at a time."""
