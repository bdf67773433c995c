"""The heart of the paper as pure tensor functions: pool, banks, selection, expansion."""
