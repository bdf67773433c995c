"""Models for others: the card that goes with one, and the way to and from the Hugging Face hub."""
