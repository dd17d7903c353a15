"""Tables of measured kernel times, as AIConfigurator lays them out, each as one tidy frame.

A reader takes the path of a table and the unit of its times (``s``, ``ms``, ``us`` or ``ns``). It returns a frame of
``operator, group, kernel, precision``, the shapes and ``measured_s``, in which equal rows are one with their median,
and what it left out: data types, or operations, that no law knows.
"""
