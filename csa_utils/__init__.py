"""Causal attention dynamics: simulate them, compare with theory, judge the result.

Tokens are unit vectors.  Arrays of tokens have shape ``(..., n, d)``: one token a
row, any leading batch axes.  The front door is :func:`csa_utils.simulate.simulate`;
the vector field itself is :func:`csa_utils.attention.field`.

Modules, from the ground up (each imports only from those before it):

``checks``       what every public function asks of its arguments
``sphere``       geometry of the unit sphere
``spectrum``     leading eigenspaces of a value matrix
``compiled``     how loops are compiled; a fast exponential
``kernels``      compiled fields, linearisations and solves
``integrators``  solvers for any tangent field on the sphere (a package, one file a family)
``attention``    masks, weights, the dynamics and their Jacobian
``circle``       the field in angles, densely and by Fourier sums
``simulate``     parameters in, trajectory out
``observables``  diameter, clusters, collapse, distance to a subspace
``leaders``      the reduced model of long times
``ensemble``     many runs, on any executor
``exact``        closed forms
``style``        colours and figure sizes
``plots``        figures
``widgets``      figures that move
``claims``       predicted, measured, margin, verdict
"""

__version__ = "0.1.0"
