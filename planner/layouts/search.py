"""The cheapest values of many variables, where each cost depends on one variable or on two.

    cost of a variable's values       cost of two variables' values        cheapest
    a: [0, 2]   b: [1, 0]             a-b: [[5, 5],                        a = 1, b = 1: 2 + 0 + 0
                                            [5, 0]]

In four steps, each of which leaves the optimum where it is:

1. A value that another value of its variable beats, whatever the others do, is dropped.
2. A variable with one or two neighbours is eliminated: a table over them says what its best value costs
   for each choice of theirs. Chains and trees of any length are gone after that.
3. Costs are moved between the tables that are left so that the sum of their minima, which is a lower
   bound, rises (sequential reweighted message passing). With it, values are dropped that no answer
   better than the best one found so far can have. What looks alike a few steps around, such as the
   layers of a network, is worked on once at first; values by which the bound hardly rises are tried.
4. What is left is eliminated, the smallest table first. One that would be larger than `limit` is cut in
   two, each of which takes its own best value. This alone is not exact, but still a bound. Then the
   best values of variables that close no cycle are looked for, the others staying as they are.

So the answer comes with a bound, and where no table was cut, nor the search ended since the bound was
close, it is the optimum."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Table = np.ndarray[Any, Any]
least = np.minimum.reduce  # sooner than `min`, which asks more
LIMIT = 1 << 20  # entries of a table
SWEEPS = 64  # over all variables that are left; of many, fewer:
MOVES = 150_000  # of costs to and from a table
# Of the cost, above a bound, as no price is known so well: with all sweeps, and where these are fewer.
GAPS = (2e-3, 5e-3)
TRIES = (1, 3, 7, 15, 31)  # sweeps behind which
PROMISING = (0.2, 0.05, 0.01, 0.0)  # values are tried that raise the bound by so much of the gap
AT_ONCE = 1 << 18  # differences, which are sooner made than equal columns are found
CUT_SMALLER = 128  # tables, where some have to be cut


@dataclass(slots=True)
class Problem:
    """Costs may be shared between variables that are alike: the same table is worked on once."""

    costs: list[Table] = field(default_factory=list)
    pairs: dict[tuple[int, int], list[Table]] = field(default_factory=dict)  # the lower first
    turns: dict[int, tuple[Table, Table]] = field(default_factory=dict)  # of shared tables, by id
    added: dict[tuple[int, int], tuple[Table, Table, Table]] = field(default_factory=dict)

    def variable(self, costs: Table) -> int:
        self.costs.append(costs)
        return len(self.costs) - 1

    def more(self, i: int, costs: Table) -> None:
        """Cost of values of i besides; variables that are alike still share theirs."""
        before = self.costs[i]
        key = id(before), id(costs)
        if key not in self.added:
            self.added[key] = before, costs, before + costs
        self.costs[i] = self.added[key][2]

    def pair(self, i: int, j: int, table: Table) -> None:
        """Cost of values of i (rows) and of j (columns) together."""
        if i > j:
            i, j, table = j, i, self.turned(table)
        self.pairs.setdefault((i, j), []).append(table)

    def turned(self, table: Table) -> Table:
        if id(table) not in self.turns:
            self.turns[id(table)] = (table, table.T)
        return self.turns[id(table)][1]

    def cost(self, values: Sequence[int]) -> float:
        total = sum([float(c[v]) for c, v in zip(self.costs, values, strict=True)])
        for (i, j), tables in self.pairs.items():
            total += sum([float(t[values[i], values[j]]) for t in tables])
        return total


@dataclass(frozen=True, slots=True)
class Answer:
    values: list[int]
    cost: float
    bound: float  # no choice costs less

    @property
    def gap(self) -> float:
        """By how much it may be above the optimum."""
        return 0.0 if self.cost <= self.bound else (self.cost - self.bound) / max(self.bound, 1e-30)


def solve(problem: Problem, limit: int = LIMIT) -> Answer:
    """The cheapest choice, or one near it with a bound."""
    return _Solver(problem, limit).answer()


@dataclass(slots=True)
class _Solver:
    problem: Problem
    limit: int
    kept: list[Table] = field(default_factory=list)  # of each variable, the values that are left
    sums: dict[tuple[int, ...], Table] = field(default_factory=dict)
    parts: dict[tuple[int, bytes, bytes], Table] = field(default_factory=dict)
    worst: dict[int, Table] = field(default_factory=dict)
    hold: list[Any] = field(default_factory=list)  # objects whose ids are keys
    once: _Once = field(default_factory=lambda: _Once())

    def answer(self) -> Answer:
        costs = list(self.problem.costs)
        self.kept = [np.arange(len(c)) for c in costs]
        pairs = {ij: self._sum(tables) for ij, tables in self.problem.pairs.items()}
        self._drop(costs, pairs)
        costs, pairs = self._without_constants(costs, pairs)
        near: list[dict[int, Table]] = [{} for _ in costs]
        for (i, j), table in pairs.items():
            near[i][j], near[j][i] = table, self.once.turned(table)
        order = _contract(costs, near, self.once)
        gone = {i for i, _, _ in order}
        names = [i for i in range(len(costs)) if i not in gone]
        core = _Core.from_costs(names, costs, near)
        found, gap = core.solved(self.limit)
        values = dict(zip(names, found, strict=True))
        for i, cost, others in reversed(order):
            total = cost
            for j, table in others:
                total = total + table[:, values[j]]
            values[i] = int(np.argmin(total))
        made = [int(k[values[i]]) for i, k in enumerate(self.kept)]
        least = self.problem.cost(made)
        return Answer(made, least, least - gap)

    # -- smaller -------------------------------------------------------------------------------
    def _sum(self, tables: Sequence[Table]) -> Table:
        if len(tables) == 1:
            return tables[0]
        key = tuple([id(t) for t in tables])
        if key not in self.sums:
            self.hold.append(tables)
            self.sums[key] = sum(tables[1:], tables[0])
        return self.sums[key]

    def _drop(self, costs: list[Table], pairs: dict[tuple[int, int], Table]) -> None:
        """Drops values that another one beats whatever the neighbours do."""
        around: dict[int, list[Table]] = {}
        for (i, j), table in pairs.items():
            around.setdefault(i, []).append(table)
            around.setdefault(j, []).append(self.problem.turned(table))
        seen: dict[tuple[int, ...], Table] = {}
        dropped: dict[int, Table] = {}
        for i, cost in enumerate(costs):
            if len(cost) < 2:
                continue
            tables = around.get(i, [])
            key = (id(cost), *(id(t) for t in tables))
            keeps = seen.get(key)
            if keeps is None:
                self.hold.append((cost, tables))
                more = cost[:, None] - cost[None, :]  # by how much a row's value costs more
                for table in tables:
                    more = more + self._least_more(table)
                worse = (more > 0) | ((more == 0) & np.tri(len(cost), k=-1, dtype=bool))
                keeps = seen[key] = np.flatnonzero(~worse.any(1))
            if len(keeps) < len(cost):
                dropped[i] = keeps
        for i, keeps in dropped.items():
            self.kept[i] = self.kept[i][keeps]
            costs[i] = self._part(costs[i], keeps, None)
        for (i, j), table in pairs.items():
            rows, columns = dropped.get(i), dropped.get(j)
            if rows is not None or columns is not None:
                pairs[i, j] = self._part(table, rows, columns)

    def _least_more(self, table: Table) -> Table:
        """For each two rows, by how much the first costs more than the second at the least."""
        found = self.worst.get(id(table))
        if found is None:
            self.hold.append(table)
            rows, columns = table.shape
            if rows * rows * columns <= AT_ONCE:
                found = (table[:, None] - table[None]).min(2)
            else:
                unique = np.unique(table, axis=1)
                found = np.empty((rows, rows))
                for r in range(rows):
                    found[r] = (unique[r] - unique).min(1)
            self.worst[id(table)] = found
        return found

    def _part(self, table: Table, rows: Table | None, columns: Table | None) -> Table:
        key = (
            id(table),
            b"" if rows is None else rows.tobytes(),
            b"" if columns is None else columns.tobytes(),
        )
        found = self.parts.get(key)
        if found is None:
            self.hold.append(table)
            found = table if rows is None else table[rows]
            found = found if columns is None else found[:, columns]
            self.parts[key] = found
        return found

    def _without_constants(
        self, costs: list[Table], pairs: dict[tuple[int, int], Table]
    ) -> tuple[list[Table], dict[tuple[int, int], Table]]:
        """A variable with one value left is no variable: what it costs with a neighbour is the
        neighbour's alone."""
        left = {}
        for (i, j), table in pairs.items():
            if table.shape[0] == 1:
                costs[j] = self.once.made(_with_row, costs[j], table)
            elif table.shape[1] == 1:
                costs[i] = self.once.made(_with_row, costs[i], self.once.turned(table))
            else:
                left[i, j] = table
        return costs, left


@dataclass(slots=True)
class _Once:
    """What is made of the same tables is made once: so equal layers stay the same tables."""

    found: dict[tuple[Any, ...], Table] = field(default_factory=dict)
    hold: list[Any] = field(default_factory=list)  # objects whose ids are keys

    def made(self, rule: Callable[..., Table], *tables: Table) -> Table:
        key = (rule, *map(id, tables))
        table = self.found.get(key)
        if table is None:
            self.hold.append(tables)
            table = self.found[key] = rule(*tables)
        return table

    def turned(self, table: Table) -> Table:
        made = self.made(np.transpose, table)
        self.found.setdefault((np.transpose, id(made)), table)
        return made


def _with_row(costs: Table, table: Table) -> Table:
    return costs + table[0]


def _with_least(costs: Table, own: Table, table: Table) -> Table:
    """Costs, and those of a neighbour's best value."""
    return costs + (own[:, None] + table).min(0)


def _least_between(own: Table, one: Table, other: Table) -> Table:
    """Costs of the best value of a variable between two."""
    return (one[:, :, None] + (own[:, None] + other)[:, None, :]).min(0)


# -- elimination -----------------------------------------------------------------------------------
Gone = list[tuple[int, Table, list[tuple[int, Table]]]]  # variables, their costs and pairs


def _contract(costs: list[Table], near: list[dict[int, Table]], once: _Once) -> Gone:
    """Eliminates variables that have one neighbour or two, again and again."""
    order: Gone = []
    queue = [i for i, others in enumerate(near) if len(others) < 3]
    done = [False] * len(costs)
    while queue:
        i = queue.pop()
        if done[i] or len(near[i]) > 2:
            continue
        done[i] = True
        others = list(near[i].items())
        order.append((i, costs[i], others))
        for j, _ in others:
            del near[j][i]
        if len(others) == 1:
            ((j, table),) = others
            costs[j] = once.made(_with_least, costs[j], costs[i], table)
        elif others:
            (j, one), (k, other) = others
            made = once.made(_least_between, costs[i], one, other)
            made = once.made(np.add, near[j][k], made) if k in near[j] else made
            near[j][k], near[k][j] = made, once.turned(made)
        queue.extend([j for j, _ in others if len(near[j]) < 3])
    return order


@dataclass(slots=True)
class _Shared:
    """A table of pairs that look alike, and what was moved away from it: along rows, along columns."""

    left: Table
    moved: list[Table]

    def move(self, costs: Table, side: int) -> None:
        self.left -= costs if side else costs[:, None]
        self.moved[side] += costs


def _colours(
    costs: Sequence[Table], pairs: dict[tuple[int, int], Table], near: Sequence[Sequence[int]]
) -> tuple[list[int], dict[tuple[int, int], int]]:
    """Numbers of variables that are equal where those around them look alike a few steps far; and of
    tables that are equal."""
    numbers: dict[Any, int] = {}
    known: dict[int, int] = {}  # by a table's id

    def number(key: Any) -> int:
        return numbers.setdefault(key, len(numbers))

    def kind(table: Table) -> int:
        if id(table) not in known:
            known[id(table)] = number((table.shape, table.tobytes()))
        return known[id(table)]

    tables = {ij: kind(t) for ij, t in pairs.items()}
    found = list(map(kind, costs))
    for _ in range(3):
        around = [
            [(tables[(i, j) if i < j else (j, i)], i < j, found[j]) for j in others]
            for i, others in enumerate(near)
        ]
        found = [number((found[i], *sorted(others))) for i, others in enumerate(around)]
    return found, tables


@dataclass(slots=True)
class _Core:
    """Variables of which each has three neighbours or more, numbered in the order of the problem's.
    `base`, the costs and the pairs add up to the cost of a choice, however they are moved; tables may
    be the problem's until the first are moved."""

    costs: list[Table]
    pairs: dict[tuple[int, int], Table]  # the lower first
    near: list[list[int]]
    kept: list[Table]
    base: float = 0.0
    bound: float = -math.inf
    best: list[int] = field(default_factory=list)
    least: float = math.inf  # what it costs

    @classmethod
    def from_costs(
        cls, names: Sequence[int], costs: list[Table], near: list[dict[int, Table]]
    ) -> _Core:
        at = {i: k for k, i in enumerate(names)}
        pairs = {(at[i], at[j]): t for i in names for j, t in near[i].items() if i < j}
        return cls(
            [costs[i] for i in names],
            pairs,
            [sorted([at[j] for j in near[i]]) for i in names],
            [np.arange(len(costs[i])) for i in names],
        )

    def solved(self, limit: int) -> tuple[list[int], float]:
        """The best values, and by how much they may be above the optimum."""
        sweeps = min(SWEEPS, max(8, MOVES // max(1, len(self.pairs))))
        near, before = GAPS[sweeps < SWEEPS], -math.inf
        for turn in range(sweeps if self.costs else 0):
            gap = self.least - self.bound
            if turn and gap <= near * abs(self.least):
                return self.best, gap if gap > 1e-12 * abs(self.least) else 0.0
            if turn % 8 == 7:
                if self.bound - before < gap / 50:  # more sweeps bring little
                    break
                before = self.bound
            if turn % 4 == 0 and _fits(list(map(len, self.costs)), self.pairs, limit):
                break
            if turn == 0 and not self._spread_alike(limit):
                self._own()
            self._sweep(back=turn % 2 == 1)
            if turn % 2 == 1:
                more = self._more()
                if turn in TRIES:
                    self._try_promising(more, limit)
                self._drop(more)
        fits = _fits(list(map(len, self.costs)), self.pairs, limit)
        small = limit if fits else limit // CUT_SMALLER  # a better bound takes long
        values, bound = _eliminate(list(self.costs), self.pairs, small)
        self._try(values)
        if bound is None:
            return self.best, 0.0
        self._try_forests(limit)
        return self.best, max(0.0, self.least - max(self.bound, self.base + bound))

    def _own(self) -> None:
        """Copies the problem's tables."""
        self.pairs = {ij: t.astype(float) for ij, t in self.pairs.items()}

    def _spread_alike(self, limit: int) -> bool:
        """Moves costs once for all variables that look alike, such as those of the layers of a
        network, if there are such; those at its ends are told apart later. Whatever is moved, the
        costs of choices stay what they are. Then a choice is tried that is the same for all of them."""
        alike, tables = _colours(self.costs, self.pairs, self.near)
        members: dict[int, list[int]] = {}
        for i, colour in enumerate(alike):
            members.setdefault(colour, []).append(i)
        if 3 * len(members) > len(alike):
            return False
        shared: dict[tuple[int, int, int], _Shared] = {}
        for (i, j), table in self.pairs.items():
            key = tables[i, j], alike[i], alike[j]
            if key not in shared:
                shared[key] = _Shared(table.astype(float), [np.zeros(n) for n in table.shape])
        of = {(i, j): shared[tables[i, j], alike[i], alike[j]] for i, j in self.pairs}

        def sides(i: int) -> list[tuple[_Shared, int]]:
            return [(of[i, j], 0) if i < j else (of[j, i], 1) for j in self.near[i]]

        order = sorted([each[len(each) // 2] for each in members.values()])
        around = {i: sides(i) for i in order}
        distinct = {i: {(id(p), side): (p, side) for p, side in around[i]} for i in order}
        for turn in range(SWEEPS // 2):
            back = turn % 4 > 1  # twice each way, so that what is moved comes to the next layer
            for i in reversed(order) if back else order:
                own = distinct[i].values()
                for pair, side in own:
                    pair.move(least(pair.left, 1 - side), side)
                cost = sum([pair.moved[side] for pair, side in around[i]], self.costs[i])
                many = sum([side == back for _, side in around[i]])
                if many:
                    share = (least(cost) - cost) / max(many, len(around[i]) - many)
                    for pair, side in own:
                        if side == back:
                            pair.move(share, side)
        for i, cost in enumerate(self.costs):
            self.costs[i] = sum([pair.moved[side] for pair, side in sides(i)], cost)
        self.pairs = {ij: pair.left.copy() for ij, pair in of.items()}
        self._try_alike(alike, limit)
        return True

    def _try_alike(self, alike: Sequence[int], limit: int) -> None:
        """Tries the best choice that is the same for all variables that look alike."""
        names = {colour: n for n, colour in enumerate(dict.fromkeys(alike))}
        which = [names[colour] for colour in alike]
        costs: list[Table] = [np.zeros(0)] * len(names)
        pairs: dict[tuple[int, int], Table] = {}
        for i, cost in zip(which, self.costs, strict=True):
            costs[i] = costs[i] + cost if costs[i].size else cost
        for (i, j), table in self.pairs.items():
            a, b = which[i], which[j]
            if a == b:
                costs[a] = costs[a] + table.diagonal()
                continue
            a, b, table = (a, b, table) if a < b else (b, a, table.T)
            pairs[a, b] = pairs[a, b] + table if (a, b) in pairs else table.copy()
        near = [set[int]() for _ in costs]
        for a, b in pairs:
            near[a].add(b)
            near[b].add(a)
        kept = [np.arange(len(c)) for c in costs]
        one = _Core(costs, pairs, list(map(sorted, near)), kept)
        for turn in range(TRIES[1] + 1):
            one._sweep(back=turn % 2 == 1)
            if turn in TRIES:
                one._try_promising(one._more(), limit // CUT_SMALLER)
        self._try([one.best[n] for n in which])

    def _try(self, values: list[int]) -> None:
        values = _improved(self.costs, self.pairs, values)
        cost = self.base + sum([float(c[v]) for c, v in zip(self.costs, values, strict=True)])
        cost += sum([float(t[values[i], values[j]]) for (i, j), t in self.pairs.items()])
        if cost < self.least:
            self.least = cost
            self.best = [int(k[v]) for k, v in zip(self.kept, values, strict=True)]

    def _sweep(self, back: bool) -> None:
        """Moves costs along the variables, so that the minima rise; what is chosen on the way is tried."""
        order = range(len(self.costs))
        values = [-1] * len(order)
        for i in reversed(order) if back else order:
            cost, ahead, behind = self.costs[i], list[tuple[bool, Table]](), 0
            for j in self.near[i]:
                first = i < j
                table = self.pairs[(i, j) if first else (j, i)]
                much = least(table, 1 if first else 0)
                table -= much[:, None] if first else much
                cost = cost + much
                if first is back:
                    behind += 1
                else:
                    ahead.append((first, table))
            low = float(least(cost))
            self.base += low
            cost = cost - low
            guess = cost
            for j in self.near[i]:
                if values[j] >= 0:
                    first = i < j
                    table = self.pairs[(i, j) if first else (j, i)]
                    guess = guess + (table[:, values[j]] if first else table[values[j]])
            values[i] = int(guess.argmin())
            if ahead:
                share = cost / max(len(ahead), behind)
                for first, table in ahead:
                    table += share[:, None] if first else share
                cost = cost - share * len(ahead)
            self.costs[i] = cost
        self.bound = max(self.bound, self._minima())
        self._try(values)

    def _minima(self) -> float:
        return self.base + sum([float(c.min()) for c in (*self.costs, *self.pairs.values())])

    def _drop(self, more: Sequence[Table]) -> None:
        """Drops values without which the best answer so far can only be beaten."""
        room = self.least - self._minima()
        room += 1e-9 * abs(self.least)
        keeps = [np.flatnonzero(m <= room) if m.min() <= room else np.arange(len(m)) for m in more]
        self.costs, self.pairs = self._only(keeps)
        self.kept = [
            k if len(k) == len(rows) else k[rows] for k, rows in zip(self.kept, keeps, strict=True)
        ]

    def _more(self) -> list[Table]:
        """By how much the bound rises, at the least, if a variable has a value, for each of them."""
        found = []
        for i, cost in enumerate(self.costs):
            more = cost - cost.min()
            for j in self.near[i]:
                much = least(self.pairs[(i, j) if i < j else (j, i)], 1 if i < j else 0)
                more = more + (much - much.min())
            found.append(more)
        return found

    def _only(self, keeps: Sequence[Table]) -> tuple[list[Table], dict[tuple[int, int], Table]]:
        """The costs and pairs of some of the values."""
        pairs = {}
        for (i, j), table in self.pairs.items():
            if len(keeps[i]) < table.shape[0]:
                table = table[keeps[i]]
            if len(keeps[j]) < table.shape[1]:
                table = table[:, keeps[j]]
            pairs[i, j] = np.ascontiguousarray(table)
        return [
            c if len(c) == len(k) else c[k] for c, k in zip(self.costs, keeps, strict=True)
        ], pairs

    def _try_promising(self, more: Sequence[Table], limit: int) -> None:
        """The best of the values by which the bound hardly rises is mostly the best of all."""
        room = self.least - self._minima()
        for share in PROMISING:
            keeps = [np.flatnonzero(m <= max(share * room, m.min())) for m in more]
            if _fits(list(map(len, keeps)), self.pairs, limit):
                costs, pairs = self._only(keeps)
                values, _ = _eliminate(costs, pairs, limit)
                self._try([int(k[v]) for k, v in zip(keeps, values, strict=True)])
                return

    def _try_forests(self, limit: int) -> None:
        """Tries the best values of variables that close no cycle, the others staying as they are."""
        draw, order = random.Random(0), list(range(len(self.costs)))
        for _ in range(min(SWEEPS // 2, MOVES // (5 * len(self.pairs)))):
            draw.shuffle(order)
            free = _forest(order, self.near)
            pairs = zip(self.kept, self.best, strict=True)
            keeps = [
                np.arange(len(k)) if i in free else np.searchsorted(k[:-1], [v])
                for i, (k, v) in enumerate(pairs)
            ]
            values, _ = _eliminate(*self._only(keeps), limit)
            self._try([int(k[v]) for k, v in zip(keeps, values, strict=True)])


def _forest(order: Iterable[int], near: Sequence[Sequence[int]]) -> set[int]:
    """Variables, as they come in this order, that close no cycle with those before them."""
    found, above = set[int](), dict[int, int]()

    def root(i: int) -> int:
        while i in above:
            i = above[i]
        return i

    for i in order:
        trees = [root(j) for j in near[i] if j in found]
        if len({*trees}) == len(trees):
            found.add(i)
            above.update(dict.fromkeys(trees, i))
    return found


def _fits(sizes: Sequence[int], pairs: Iterable[tuple[int, int]], limit: int) -> bool:
    """Whether elimination of variables of so many values makes no table that is larger."""
    near = [set[int]() for _ in sizes]
    for i, j in pairs:
        if sizes[i] > 1 and sizes[j] > 1:
            near[i].add(j)
            near[j].add(i)
    weights = [math.log(n) for n in sizes]
    queue = [(_weight(weights, i, near[i]), i) for i in range(len(sizes)) if sizes[i] > 1]
    heapq.heapify(queue)
    most, gone = math.log(limit), set[int]()
    while queue:
        weight, i = heapq.heappop(queue)
        if i in gone:
            continue
        now = _weight(weights, i, near[i])
        if now > weight + 1e-9:
            heapq.heappush(queue, (now, i))
            continue
        if now > most:
            return False
        gone.add(i)
        for j in near[i]:
            near[j] |= near[i]
            near[j] -= {i, j}
            heapq.heappush(queue, (_weight(weights, j, near[j]), j))
    return True


def _eliminate(
    costs: list[Table], pairs: dict[tuple[int, int], Table], limit: int
) -> tuple[list[int], float | None]:
    """The best values, and a bound if a table was cut, so that they may not be the best."""
    sizes = [len(c) for c in costs]
    factors: dict[int, tuple[tuple[int, ...], Table]] = {}
    at: list[set[int]] = [set() for _ in costs]  # the factors of each variable
    near: list[set[int]] = [set() for _ in costs]
    for number, (ij, table) in enumerate(pairs.items()):
        i, j = ij
        if sizes[i] == 1 or sizes[j] == 1:  # what has one value left is no variable
            if sizes[i] == 1:
                costs[j] = costs[j] + table[0]
            else:
                costs[i] = costs[i] + table[:, 0]
            continue
        factors[number] = ij, table
        for a, b in (ij, ij[::-1]):
            at[a].add(number)
            near[a].add(b)
    number = len(pairs)
    base, cut = 0.0, False
    weights = [math.log(n) for n in sizes]
    queue = [(_weight(weights, i, near[i]), i) for i in range(len(costs))]
    heapq.heapify(queue)
    gone = [False] * len(costs)
    order: list[tuple[int, list[tuple[tuple[int, ...], Table]]]] = []
    while queue:
        weight, i = heapq.heappop(queue)
        if gone[i]:
            continue
        now = _weight(weights, i, near[i])
        if now > weight + 1e-9:
            heapq.heappush(queue, (now, i))
            continue
        gone[i] = True
        mine = [factors.pop(k) for k in sorted(at[i])]
        for scope, _ in mine:
            for j in scope:
                if j != i:
                    near[j].discard(i)
        old = set(at[i])
        at[i] = set()
        order.append((i, [((i,), costs[i]), *mine]))
        buckets = _buckets(i, mine, sizes, limit)
        cut = cut or len(buckets) > 1
        touched = set[int]()
        for k, bucket in enumerate(buckets):
            own = costs[i] if k == 0 else None
            scope = tuple(sorted({j for s, _ in bucket for j in s} - {i}))
            table = _eliminated(i, own, bucket, scope, sizes)
            if not scope:
                base += float(table)
                continue
            if len(scope) == 1:
                costs[scope[0]] = costs[scope[0]] + table
                touched.update(scope)
                continue
            factors[number] = scope, table
            for j in scope:
                at[j].add(number)
                near[j].update(scope)
                near[j].discard(j)
                touched.add(j)
            number += 1
        for scope, _ in mine:
            for j in scope:
                if j != i:
                    at[j] -= old
                    touched.add(j)
        for j in touched:
            # neighbours that only an eliminated factor named are none any more
            near[j] = {m for k in at[j] for m in factors[k][0]} - {j}
            heapq.heappush(queue, (_weight(weights, j, near[j]), j))
    values = [0] * len(costs)
    for i, bucket in reversed(order):
        total: Any = 0.0
        for scope, table in bucket:
            total = total + table[tuple([slice(None) if j == i else values[j] for j in scope])]
        values[i] = int(np.argmin(total))
    return values, base if cut else None


def _weight(weights: Sequence[float], i: int, near: Iterable[int]) -> float:
    return weights[i] + sum([weights[j] for j in near])


def _buckets(
    i: int, factors: list[tuple[tuple[int, ...], Table]], sizes: Sequence[int], limit: int
) -> list[list[tuple[tuple[int, ...], Table]]]:
    """The factors of a variable in groups of which each makes a table within the limit."""
    made: list[tuple[set[int], list[tuple[tuple[int, ...], Table]]]] = []
    for scope, table in sorted(factors, key=lambda f: -f[1].size):
        for names, bucket in made:
            if math.prod([sizes[j] for j in names | set(scope)]) <= limit:
                names.update(scope)
                bucket.append((scope, table))
                break
        else:
            made.append(({i, *scope}, [(scope, table)]))
    return [bucket for _, bucket in made] or [[]]


def _eliminated(
    i: int,
    own: Table | None,
    bucket: list[tuple[tuple[int, ...], Table]],
    scope: tuple[int, ...],
    sizes: Sequence[int],
) -> Table:
    """Cost of the best value of a variable, for each choice of the others of its factors."""
    if len(bucket) == 1 and own is not None:
        ((names, table),) = bucket
        if len(names) == 2:
            return (table + own[:, None]).min(0) if names[0] == i else (table + own).min(1)
    every = (i, *scope)
    total = np.zeros([sizes[j] for j in every])
    if own is not None:
        total += own.reshape([-1] + [1] * len(scope))
    for names, table in bucket:
        axes = [names.index(j) for j in every if j in names]
        shape = [sizes[j] if j in names else 1 for j in every]
        total += table.transpose(axes).reshape(shape)
    return np.asarray(total.min(0))


def _improved(
    costs: Sequence[Table], pairs: dict[tuple[int, int], Table], values: list[int]
) -> list[int]:
    """Changes one variable at a time while that makes it cheaper."""
    around: list[list[tuple[int, Table]]] = [[] for _ in costs]
    for (i, j), table in pairs.items():
        around[i].append((j, table))
        around[j].append((i, table.T))
    values, queue = list(values), list(range(len(costs)))
    waits = set(queue)
    for _ in range(50 * len(costs)):
        if not queue:
            break
        i = queue.pop()
        waits.discard(i)
        total = costs[i].astype(float)
        for j, table in around[i]:
            total = total + table[:, values[j]]
        best = int(np.argmin(total))
        if total[best] < total[values[i]] - 1e-15:
            values[i] = best
            for j, _ in around[i]:
                if j not in waits:
                    waits.add(j)
                    queue.append(j)
    return values
