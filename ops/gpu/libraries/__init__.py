"""Libraries of a GPU, by their C interfaces."""
