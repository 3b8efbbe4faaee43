"""Privacy-loss distributions: upper and lower bounds on epsilon for any composition of events.

Composition works on arrays, by Fourier transforms. Coefficients raised to the number of steps may be wrong
by 1e-14 per step, so delta is first lowered by that much; where nothing of it would be left, Renyi privacy
takes over and the result says so. Zero-out is accounted as add-or-remove, replace-one by a pair of its own.
A sample of fixed size has the curve of Balle, Barthe and Gaboardi (2018) at half the noise, made symmetric
so that it composes. Selections have the curve of Dong, Durfee and Rogers (2020), with half the parameter
under zero-out. Lower bounds merge the losses of one pair of data sets into cells (see `lower`).
"""
