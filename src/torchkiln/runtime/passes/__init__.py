"""Reading and changing captured graphs."""
