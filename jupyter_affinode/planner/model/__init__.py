"""The machine that plans are replayed on, under a virtual clock; the tests of the policy go through it step by step."""
