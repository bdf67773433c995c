"""Search: from query descriptors to scored matches; re-ranking, regions, local evidence, the index command."""
