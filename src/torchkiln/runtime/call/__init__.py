"""What a program takes: its arguments, the tensors of its module, and what is known of both."""
