"""The measuring sticks: one module per number that the README claims.

The idea: every contender runs in a process of its own and answers the same few requests, so that
thread pools, memory and caches of one do not touch another; the parent alternates between them.
Run with `python -m bench.cpu_models` from the repository's root.
"""
