"""Rival methods and supervised anchors; insclr finds them by entry points, as it finds third-party methods."""
