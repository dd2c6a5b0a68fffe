"""JupyterHub's side of jupyter-affinode, for the Hub's machine."""
