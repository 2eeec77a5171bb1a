"""The model as GPU kernels read it: fused and perhaps quantized weights, and one pure forward over rows of segments."""
