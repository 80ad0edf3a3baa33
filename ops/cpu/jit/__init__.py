"""Expressions as LLVM text, the machine code of it, and how that is called."""
