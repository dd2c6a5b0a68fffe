"""The simulated machine of the planner, under a virtual clock; the tests of the policy go through it step by step."""
