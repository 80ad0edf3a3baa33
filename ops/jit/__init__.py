"""What kernels compute for one element, as instructions that a writer spells for a device."""
