"""The applications, each from a command line to its results: SchNet, CosmicTagger, small steps."""
