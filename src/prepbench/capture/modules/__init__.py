"""Module graphs: FX graphs whose nodes call leaf modules."""
