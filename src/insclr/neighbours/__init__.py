"""Nearest neighbours by cosine: one exact and one approximate search, and the candidate pool made of them."""
