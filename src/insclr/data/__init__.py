"""Photos in: lists of images, decoding, views, training tuples, the demo collection."""
