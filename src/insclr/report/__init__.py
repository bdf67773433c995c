"""Pictures of a run: inline charts and the self-contained HTML report."""
