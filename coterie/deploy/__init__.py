"""A federation of real silos: plans that owners approve, guards that own the data, and a coordinator."""
