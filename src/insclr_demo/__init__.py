"""A collection of invented products, photographed by program: something to search without a download."""

from insclr_demo.collection import QUERIES, draw_collection

__all__ = ["QUERIES", "draw_collection"]
