"""Pages for people, each one HTML file: the report of a run, a comparison of models, sheets of groups."""
