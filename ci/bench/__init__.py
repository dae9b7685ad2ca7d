"""How fast csa_utils is, beside other ways to do the same work.

    make bench
    python -m ci.bench --threads 1 --only field-small-numpy

Each *row* times two works in turn: ours and a peer's.  Each *series* times several
works over a range of sizes.  ``engine`` holds our side, ``peers`` the other one,
``rows`` pairs them, ``measure`` times them, ``record`` keeps and checks the file
``book/evidence/performance.json``, and ``table`` shows it.

Nothing here is imported by the book's code or its tests of correctness, and no test
asks for a speed: speed is measured, never tested.  Importing this package imports
nothing else, because the number of threads is set before numpy starts.
"""
