"""Evaluation: metrics, and one small module per public protocol."""
