"""oneDNN, BLAS and LAPACK."""
