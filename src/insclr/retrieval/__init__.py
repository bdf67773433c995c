"""Descriptors to answers: extraction, stores, search, re-ranking."""
