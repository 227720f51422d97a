"""What makes the site: pages from docstrings, notebooks and tables in code, the gallery, and the check of links."""
