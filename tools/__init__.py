"""Tools for maintainers: page generators, series of drills, measures of style.

They are not part of the package. Run them from a checkout.
"""
