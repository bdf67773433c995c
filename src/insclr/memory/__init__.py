"""What a method keeps between steps, in memory or in files: memory banks and candidate pools."""
