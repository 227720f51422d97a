"""Small modules as people write them, each of which cannot be captured for one everyday reason."""
