"""Secure sums: the server learns the sum of the silos' vectors and nothing else about any of them."""
