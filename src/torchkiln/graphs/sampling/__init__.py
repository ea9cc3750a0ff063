"""Parts of one large graph: clusters and sampled neighbourhoods, without compiled packages."""
