"""Randomness that a certificate can rest on: secret bits, exact noise on a grid, exact private choices.

`keystream.py` has the bits, `rounded.py` Gaussian noise (with the argument why what is released has
exactly the distribution that the accountant certifies), `choice.py` choices, and `dice.py` puts them
together for one use."""
