"""From captured graphs to native code, and to files that carry it."""
