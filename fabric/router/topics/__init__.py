"""Topics: settings, counts, retention and compaction."""
