"""Commands of the search engine: index, search, duplicates, cluster, serve, demo."""
