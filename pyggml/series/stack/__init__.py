"""A series and its commits: git objects only, no reference and no file of the work tree is touched."""
