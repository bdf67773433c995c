"""The search page: a small server and its static files."""
