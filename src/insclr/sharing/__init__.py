"""Share models: the model card, and the Hugging Face hub."""
