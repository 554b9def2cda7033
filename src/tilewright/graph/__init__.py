"""The graph IR: structs, notation, builder, verifier, text form, evaluator and pass runner.

The idea: a graph is a value, frozen and free of effects, that prints and parses as text.
This package does not know the operators (`ops` is handed in where one is needed) or torch; its
modules are imported by name.
"""
