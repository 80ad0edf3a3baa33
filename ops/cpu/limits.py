"""What depends on the kind of processor: sizes from which something pays, as timed on x86-64 with AVX-512.
Who tunes for another one begins here."""

from __future__ import annotations

from dataclasses import dataclass

ZEN_4 = "znver4"  # as LLVM calls it (ops/cpu/jit/llvm.py, `processor`)


@dataclass(frozen=True, slots=True)
class Limits:
    # What it takes to wake a thread, which costs some microseconds.
    loops_wake: int = 1 << 18  # elements times operations of a generated kernel
    copy_wake: int = 1 << 20  # bytes that are copied
    product_wake: int = 1 << 17  # multiplications of a product
    ordered_wake: int = 1 << 19  # multiplications of one whose sums are in order
    scan_wake: int = 1 << 16  # elements of running sums
    search_wake: int = 1 << 16  # comparisons of a search
    places_wake: int = 1 << 15  # elements that are gathered or scattered
    sort_wake: int = 1 << 13  # keys that are sorted

    # What is too short to let other Python threads run meanwhile, or to compile.
    product_quick: int = 1 << 17  # multiplications
    reads_quick: int = 1 << 13  # elements that a product reads
    scan_quick: int = 1 << 14  # elements of running sums
    search_quick: int = 1 << 14  # comparisons
    sort_plain: int = 4  # threads from which a long line is sorted by them, and not by NumPy
    sort_quick: int = 1 << 11  # keys
    product_tiny: int = 1 << 15  # multiplications of a product that is one plain call of BLAS
    compiled: int = 1 << 12  # elements of a single operation that is worth a kernel

    # Caches.
    line: int = 64  # bytes
    last_share: int = 4  # what is larger than this part of the last cache does not stay there
    # last caches than which more has to be moved on Zen 4, where stores past them are slow
    zen_caches: int = 2
    tile: int = 64  # rows, and columns, of a tile where operands lie across
    least_tiled: int = 1 << 14  # elements from which tiles pay ...
    far_apart: int = 256  # ... if neighbours are so many bytes apart
    written_tile: int = 1024  # elements that are made in cache before they go to memory
    tile_bytes: int = 1 << 20  # of what lies between the steps of a tile, for each thread
    thread_tiles: int = 2  # of them for each thread at the least
    unit_bytes: int = 1 << 20  # of a unit of many rows of a kernel in stages, for each thread
    walk_bytes: int = 1 << 15  # of the same, if running sums go through it tile after tile
    row_bytes: int = 1 << 25  # of a row, which need not fit, but is not as long as whole arrays
    waiting_bytes: int = 4 << 20  # of sums over rows that wait to be put together
    block_bytes: int = 1 << 18  # of a block of a product with an epilogue, and of what it packs
    sgemm_bytes: int = 1 << 19  # of such a block that oneDNN's sgemm makes,
    sgemm_strip: int = 512  # its columns,
    # and elements of a right matrix that tiles read as quickly transposed
    sgemm_small: int = 1 << 14
    turned_rows: int = 256  # of a block of a product whose left matrix lies transposed,
    turned_terms: int = 512  # and terms of a sum that are turned at once
    turned_columns: int = 64  # of one from which that pays, if so many elements are turned
    turned_elements: int = 1 << 19
    part_bytes: int = 1 << 20  # of a matrix whose rows one thread adds up
    sums_bytes: int = 1 << 17  # of sums that stay in the second cache
    streamed_row: int = 128  # bytes of a row from which streams are quicker than BLAS
    streamed_matrix: int = 1 << 22  # bytes of a matrix from which they are for columns
    conv_filters: int = 1 << 20  # bytes of filters that each row of places reads anew, ...
    conv_places: int = 4  # ... unless so many are side by side
    conv_window: int = 400  # elements of a filter whose slopes no library has
    conv_few: int = 4  # filters of many channels for which libraries leave vectors empty
    conv_turns: int = 32  # of rows, in parts if need be, at the least
    triangles: int = 1 << 22  # elements of a symmetric product's triangles
    panel_bytes: int = 1 << 17  # of its packed panels
    scatter_far: int = 1 << 24  # bytes of what is updated from which threads share places
    scatter_ahead: int = 16  # updates before one is due that it is asked for
    scatter_lines: int = 4  # lines of the cache of it

    # Vectors and registers.
    wide: int = 16  # elements of a vector
    together: int = 8  # what it costs to put those of one together
    unrolled: int = 16  # turns of the innermost loops of a kernel in stages
    ordered_rows: int = 4  # of a tile of registers of products in order
    ordered_vectors: int = 3  # of the same
    tile_vectors: int = 3  # of a panel of products with an epilogue at the most
    strip_vectors: int = 6  # of a strip of them at the least
    chains: int = 24  # values that are searched for at the same time
    packs_both: int = 64  # rows and columns from which oneDNN packs both matrices
    blas_columns: int = 8  # below which its vectors and tiles are mostly empty: BLAS is quicker,
    blas_rows: int = 16  # as below these, if the other matrix
    blas_elements: int = 1 << 17  # has not more elements;
    packed_elements: int = 1 << 20  # those from which packing it pays for few rows, too


LIMITS = Limits()
