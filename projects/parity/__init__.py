"""Compare computations of other libraries with mmairl's."""
