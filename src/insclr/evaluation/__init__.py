"""Numbers anyone can trust: one metric module, one small module a protocol."""
