"""How many users one machine's GPUs serve: `jupyter affinode plan`.

Sessions (from a trace, or made by `workload`) are replayed under a virtual clock through the controller's own
`decide()`, and through what sites do today: a GPU for each user, culling, and sharing without parking.
"""
