"""Number formats of weights: how many bits a value has, which values share a scale, and the way back to floats."""
