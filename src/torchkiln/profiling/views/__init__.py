"""What is made of a graph profile: page, time line, terminal, comparison. No torch here."""
