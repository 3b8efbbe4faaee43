"""The narrow waist: what methods, planners and engines agree on."""
