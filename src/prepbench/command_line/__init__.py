"""``python -m prepbench``: what is installed, and checks for the continuous integration of users' projects.

Each command is a file here: it adds its arguments to the parser and returns a :class:`~.outcomes.Report`, which
``main`` prints, writes to files and turns into an exit status. Modules here import nothing heavy at their top, so
that ``--help`` answers at once.
"""
