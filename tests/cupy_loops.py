"""Which dtypes CuPy's functions of elements take, and give: `types` of each ufunc, as CuPy 14.2 has them.

`python -m tests.cupy_loops` prints what an installed CuPy has, which needs no GPU; tests compare it.
"""

from __future__ import annotations

_TABLE = """
abs absolute
  ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e E->E f->f d->d F->f D->d
acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh cos cosh exp exp2
expm1 i0 log log10 log1p log2 rint sin sinc sinh sqrt tan tanh
  e->e E->E f->f d->d F->F D->D
add fmax fmin maximum minimum multiply subtract
  ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e EE->E ff->f dd->d
  FF->F DD->D
arctan2 atan2 copysign hypot nextafter
  ee->e EE->E ff->f dd->d FF->F DD->D
bitwise_and bitwise_or bitwise_xor gcd lcm
  ??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q
bitwise_count
  b->B B->B h->B H->B i->B I->B l->B L->B q->B Q->B
bitwise_invert bitwise_not invert
  ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q
bitwise_left_shift bitwise_right_shift left_shift right_shift
  bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q
cbrt deg2rad degrees fabs rad2deg radians
  e->e E->E f->f d->d
ceil fix floor trunc
  ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e E->E f->f d->d
conj conjugate reciprocal sign square
  b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e E->E f->f d->d F->F D->D
divide true_divide
  qq->d qQ->d Qq->d QQ->d ee->e EE->E ff->f dd->d FF->F DD->D
divmod
  bb->bb BB->BB hh->hh HH->HH ii->ii II->II ll->ll LL->LL qq->qq QQ->QQ ee->ee ff->ff dd->dd
equal not_equal
  ??->? qq->? QQ->? qQ->? Qq->? ee->? EE->? ff->? dd->? FF->? DD->? VV->?
float_power
  dd->d FF->D DD->D
floor_divide fmod mod remainder
  bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e EE->E ff->f dd->d
frexp
  e->ei E->Ei f->fi d->di
greater greater_equal less less_equal
  ??->? qq->? QQ->? qQ->? Qq->? ee->? EE->? ff->? dd->? FF->? DD->?
heaviside logaddexp logaddexp2
  ee->e EE->E ff->f dd->d
isfinite isinf isnan
  e->? E->? f->? d->? F->? D->?
ldexp
  ei->e Ei->E fi->f el->e El->E fl->f di->d dq->d
logical_and logical_or
  ??->? qq->? QQ->? qQ->? Qq->? ee->? EE->? ff->? dd->?
logical_not
  ?->? b->? B->? h->? H->? i->? I->? l->? L->? q->? Q->? e->? f->? d->?
logical_xor
  ??->? bb->? BB->? hh->? HH->? ii->? II->? ll->? LL->? qq->? QQ->? ee->? ff->? dd->?
modf
  e->ee E->EE f->ff d->dd
negative positive
  ?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e E->E f->f d->d F->F D->D
pow power
  ??->b bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e EE->E ff->f dd->d
  FF->F DD->D
signbit
  e->? E->? f->? d->?
where
  ???->? ?bb->b ?BB->B ?hh->h ?HH->H ?ii->i ?II->I ?ll->l ?LL->L ?qq->q ?QQ->Q ?ee->e ?ff->f
  ?dd->d ?FF->F ?DD->D
"""


def _read() -> dict[str, tuple[str, ...]]:
    """Names, and below them in columns of their own the loops that they have, the first that fits first."""
    found: dict[str, tuple[str, ...]] = {}
    names: list[str] = []
    loops: list[str] = []
    for line in _TABLE.strip("\n").splitlines():
        if line.startswith(" "):
            loops += line.split()
            found |= dict.fromkeys(names, tuple(loops))
        else:
            names = [*([] if loops else names), *line.split()]
            loops = []
    return found


LOOPS = _read()


def installed() -> dict[str, tuple[str, ...]]:
    """What the CuPy that is installed has."""
    import cupy
    from cupy._sorting.search import _where_ufunc

    members = {name: getattr(cupy, name) for name in dir(cupy)}
    ufuncs = {name: f for name, f in members.items() if isinstance(f, cupy.ufunc)}
    return {name: tuple(f.types) for name, f in (*ufuncs.items(), ("where", _where_ufunc))}


if __name__ == "__main__":
    for name, loops in sorted(installed().items()):
        print(name, *loops)
