"""The ground floor: typed errors, dtypes, and one algebra of integer and scalar expressions.

The idea: shapes, indices, bounds, costs and element values are the same kind of expression.
This package knows nothing of tensors as data, of graphs, or of torch; its modules are imported by
name (`from tilewright.base.expr import Const`), so that none drags in the others.
"""
