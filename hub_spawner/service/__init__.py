"""The Hub's service for jupyter-affinode: a page for administrators, free room, and new grants for servers."""
