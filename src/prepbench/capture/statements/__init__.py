"""Cut statements out of a user's function, so that a graph can hold them as one operator."""
