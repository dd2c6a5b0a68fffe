"""JupyterHub's side of jupyter-affinode, for the Hub's machine. It has no code yet."""
