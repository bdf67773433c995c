"""Feedback: names, answers and corrections that people give, and the groups and questions made of them."""
