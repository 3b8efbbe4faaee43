"""The same job done by Coterie, by a plain loop, and by other libraries; each in an environment of its own."""
