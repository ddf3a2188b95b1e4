"""Training of networks, and their export as models that code."""
