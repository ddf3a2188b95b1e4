"""Cells, the files their weights come in, and how float weights become exact ones."""
