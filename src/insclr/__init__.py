"""InsCLR: teach a network the particular things in your photos, and search them."""
