"""Causal attention dynamics: simulate them, compare with theory, judge the result.

Tokens are unit vectors.  Arrays of tokens have shape ``(..., n, d)``: one token a
row, any leading batch axes.  The front door is :func:`csa_utils.simulate.simulate`;
the vector field itself is :func:`csa_utils.attention.field`.

Modules, from the ground up (each imports only from those before it):

``checks``       what every public function asks of its arguments
``sphere``       geometry of the unit sphere
``spectrum``     leading eigenspaces of a value matrix
``attention``    masks, weights, the dynamics and their Jacobian
``integrators``  solvers for any tangent field on the sphere
``simulate``     parameters in, trajectory out
``observables``  diameter, clusters, collapse, distance to a subspace
``exact``        closed forms
``style``        colours and figure sizes
``plots``        figures
``widgets``      figures that move
``claims``       predicted, measured, margin, verdict
"""

__version__ = "0.1.0"
