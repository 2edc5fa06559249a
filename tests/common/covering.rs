//! Covering arrays: few rows in which every pair of values of any two factors meets, and every triple of some
//! factors, as far as the rules let them. Greedy, after Cohen, Dalal, Fredman and Patton, "The AETG system"
//! (IEEE Trans. Softw. Eng. 23(7), 1997): each row begins with a combination that no row has yet, and takes
//! value by value what meets most that is new.
//!
//! Pure, and the same for the same seed. Must not know: what the factors are.

use zero3::random::SplitMix64;

/// A name and its values.
#[derive(Debug, Clone)]
pub struct Factor {
    pub name: String,
    pub values: Vec<String>,
    /// Values that a row takes only where a combination asks for them: such rows are expensive, or show less.
    pub reluctant: Vec<usize>,
}

/// Whether values break a rule.
pub type Breaks = Box<dyn Fn(&[&str]) -> bool + Send + Sync>;

/// What cannot stand together.
pub struct Rule {
    /// Factors it looks at.
    pub factors: Vec<usize>,
    /// Whether these values, in the order of `factors`, break it.
    pub breaks: Breaks,
    /// The program refuses such a row; false: it would be right, and is not drawn.
    pub refused: bool,
}

/// Rows with this value are worth less: only combinations with one of `shown` count as met there.
#[derive(Debug, Clone)]
pub struct Hidden {
    pub factor: usize,
    pub value: usize,
    pub shown: Vec<usize>,
}

pub struct Space {
    pub factors: Vec<Factor>,
    pub rules: Vec<Rule>,
    /// Factors whose triples must meet.
    pub triples_of: Vec<usize>,
    pub hidden: Hidden,
}

/// The position of a value for each factor.
pub type Row = Vec<usize>;

/// Combinations of values: how many there are, cannot be, and meet in some row.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub wanted: usize,
    pub impossible: usize,
    pub met: usize,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Count { wanted, impossible, met } = self;
        write!(f, "{wanted} wanted, {impossible} impossible by the rules, {met} met")
    }
}

pub struct Array {
    pub rows: Vec<Row>,
    pub pairs: Count,
    pub triples: Count,
}

/// Rows tried for each one that is taken.
const CANDIDATES: usize = 6;
/// Values tried before the search for an admissible row is given up: far more than any rule here takes.
const MAX_TRIED: usize = 1_000_000;

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Not a combination.
    Nothing,
    Wanted,
    Met,
    Impossible,
}

/// All combinations and what has become of them. Values are numbered through, factor by factor.
struct Ledger<'a> {
    space: &'a Space,
    /// First value of each factor.
    first: Vec<usize>,
    n_values: usize,
    pairs: Vec<State>,
    /// Position in `triples_of`, and the first of the values numbered through those factors.
    deep: Vec<Option<usize>>,
    n_deep: usize,
    triples: Vec<State>,
}

impl<'a> Ledger<'a> {
    fn new(space: &'a Space) -> Self {
        let mut first = Vec::new();
        let mut n_values = 0;
        for factor in &space.factors {
            first.push(n_values);
            n_values += factor.values.len();
        }
        let mut deep = vec![None; space.factors.len()];
        let mut n_deep = 0;
        for &f in &space.triples_of {
            deep[f] = Some(n_deep);
            n_deep += space.factors[f].values.len();
        }
        let pairs = vec![State::Nothing; n_values * n_values];
        let triples = vec![State::Nothing; n_deep * n_deep * n_deep];
        let mut ledger = Ledger { space, first, n_values, pairs, deep, n_deep, triples };
        for combination in ledger.combinations() {
            *ledger.state_mut(&combination) = State::Wanted;
        }
        ledger
    }

    /// Every combination: pairs of all factors, triples of some.
    fn combinations(&self) -> Vec<Vec<(usize, usize)>> {
        let n = |f: usize| self.space.factors[f].values.len();
        let mut all = Vec::new();
        for a in 0..self.space.factors.len() {
            for b in a + 1..self.space.factors.len() {
                all.extend((0..n(a) * n(b)).map(|i| vec![(a, i / n(b)), (b, i % n(b))]));
            }
        }
        let mut deep = self.space.triples_of.clone();
        deep.sort_unstable();
        for (i, &a) in deep.iter().enumerate() {
            for (j, &b) in deep.iter().enumerate().skip(i + 1) {
                for &c in &deep[j + 1..] {
                    let of = |k: usize| vec![(a, k / n(c) / n(b)), (b, k / n(c) % n(b)), (c, k % n(c))];
                    all.extend((0..n(a) * n(b) * n(c)).map(of));
                }
            }
        }
        all
    }

    /// Of a combination in the order of factors.
    fn state_mut(&mut self, combination: &[(usize, usize)]) -> &mut State {
        match *combination {
            [(a, i), (b, j)] => &mut self.pairs[(self.first[a] + i) * self.n_values + self.first[b] + j],
            [(a, i), (b, j), (c, k)] => {
                let at = |f: usize, v: usize| self.deep[f].expect("a factor of triples") + v;
                &mut self.triples[(at(a, i) * self.n_deep + at(b, j)) * self.n_deep + at(c, k)]
            }
            _ => panic!("{} values are neither a pair nor a triple", combination.len()),
        }
    }

    /// Combinations of `factor = value` with what `row` has, that no row has yet.
    fn gain(&self, row: &[Option<usize>], factor: usize, value: usize) -> usize {
        let hides = |f: usize, v: usize| f == self.space.hidden.factor && v == self.space.hidden.value;
        let is_hidden = hides(factor, value)
            || row[self.space.hidden.factor].is_some_and(|v| hides(self.space.hidden.factor, v));
        let shown = |f: usize| !is_hidden || self.space.hidden.shown.contains(&f);
        let mine = self.first[factor] + value;
        let mut n = 0;
        for (f, v) in row.iter().enumerate().filter_map(|(f, v)| Some((f, (*v)?))) {
            if f == factor || !(shown(f) || shown(factor)) {
                continue;
            }
            let theirs = self.first[f] + v;
            let (low, high) = if f < factor { (theirs, mine) } else { (mine, theirs) };
            n += usize::from(self.pairs[low * self.n_values + high] == State::Wanted);
        }
        let Some(deep) = self.deep[factor].filter(|_| !is_hidden) else { return n };
        let others: Vec<(usize, usize)> = (self.space.triples_of.iter())
            .filter(|&&f| f != factor)
            .filter_map(|&f| Some((f, self.deep[f]? + row[f]?)))
            .collect();
        for (i, &one) in others.iter().enumerate() {
            for &other in &others[i + 1..] {
                let mut three = [(factor, deep + value), one, other];
                three.sort_unstable();
                let at = (three[0].1 * self.n_deep + three[1].1) * self.n_deep + three[2].1;
                n += usize::from(self.triples[at] == State::Wanted);
            }
        }
        n
    }

    /// Notes what a whole row has.
    fn take(&mut self, row: &Row) {
        let Hidden { factor, value, shown } = &self.space.hidden;
        let is_hidden = row[*factor] == *value;
        let counts = |of: &[(usize, usize)]| !is_hidden || of.iter().any(|(f, _)| shown.contains(f));
        let all: Vec<(usize, usize)> = row.iter().copied().enumerate().collect();
        let deep: Vec<(usize, usize)> =
            all.iter().copied().filter(|(f, _)| self.space.triples_of.contains(f)).collect();
        for (i, &one) in all.iter().enumerate() {
            for &other in all[i + 1..].iter().filter(|&&other| counts(&[one, other])) {
                *self.state_mut(&[one, other]) = State::Met;
            }
        }
        for (i, &one) in deep.iter().enumerate() {
            for (j, &two) in deep.iter().enumerate().skip(i + 1) {
                for &three in deep[j + 1..].iter().filter(|&&three| counts(&[one, two, three])) {
                    *self.state_mut(&[one, two, three]) = State::Met;
                }
            }
        }
    }

    fn count(states: &[State]) -> Count {
        let of = |state: State| states.iter().filter(|&&s| s == state).count();
        let (impossible, met) = (of(State::Impossible), of(State::Met));
        Count { wanted: impossible + met + of(State::Wanted), impossible, met }
    }
}

/// A search for whole rows that break no rule.
struct Search<'a> {
    space: &'a Space,
    /// For each rule that is looked at the rules' verdict on all its values, those of the last factor nearest
    /// to each other.
    broken: Vec<Vec<bool>>,
    rules_of: Vec<Vec<usize>>,
    /// Factors that rules tie to each other, group by group: where one has no values, no other can help.
    groups: Vec<Vec<usize>>,
}

/// All values of some factors, in the order of a rule's table.
fn all_values(space: &Space, factors: &[usize]) -> Vec<Vec<usize>> {
    factors.iter().fold(vec![Vec::new()], |rows, &f| {
        let with = |row: &Vec<usize>, v: usize| row.iter().copied().chain([v]).collect();
        rows.iter().flat_map(|row| (0..space.factors[f].values.len()).map(move |v| with(row, v))).collect()
    })
}

fn breaks(space: &Space, rule: &Rule, values: &[usize]) -> bool {
    let words = rule.factors.iter().zip(values).map(|(&f, &v)| space.factors[f].values[v].as_str());
    (rule.breaks)(&words.collect::<Vec<_>>())
}

impl<'a> Search<'a> {
    /// With all rules but one.
    fn new(space: &'a Space, without: Option<usize>) -> Self {
        let mut rules_of = vec![Vec::new(); space.factors.len()];
        let mut broken = Vec::new();
        let mut group: Vec<usize> = (0..space.factors.len()).collect();
        for (r, rule) in space.rules.iter().enumerate() {
            let together: Vec<usize> = rule.factors.iter().map(|&f| group[f]).collect();
            group.iter_mut().filter(|g| together.contains(g)).for_each(|g| *g = together[0]);
            broken.push(all_values(space, &rule.factors).iter().map(|v| breaks(space, rule, v)).collect());
            if Some(r) != without {
                rule.factors.iter().for_each(|&f| rules_of[f].push(r));
            }
        }
        let members = |name: usize| (0..group.len()).filter(|&f| group[f] == name).collect();
        let groups = (0..group.len()).map(members).collect();
        Search { space, broken, rules_of, groups }
    }

    /// Whether a rule of which every factor is set is broken, `factor` being one of them.
    fn is_broken(&self, row: &[Option<usize>], factor: usize) -> bool {
        self.rules_of[factor].iter().any(|&r| {
            let at = self.space.rules[r]
                .factors
                .iter()
                .try_fold(0, |at, &f| row[f].map(|value| at * self.space.factors[f].values.len() + value));
            at.is_some_and(|at| self.broken[r][at])
        })
    }

    /// How many values of a factor go with those that are set.
    fn n_admissible(&self, row: &mut [Option<usize>], factor: usize) -> usize {
        let n = (0..self.space.factors[factor].values.len())
            .filter(|&value| {
                row[factor] = Some(value);
                !self.is_broken(row, factor)
            })
            .count();
        row[factor] = None;
        n
    }

    /// The values of a factor, those that meet most first, equal ones in an order of chance.
    fn order(
        &self,
        ledger: &Ledger<'_>,
        row: &[Option<usize>],
        factor: usize,
        chance: &mut SplitMix64,
    ) -> Vec<usize> {
        let n = self.space.factors[factor].values.len();
        let mut values: Vec<_> = (0..n)
            .map(|v| {
                let reluctant = self.space.factors[factor].reluctant.contains(&v);
                (reluctant, usize::MAX - ledger.gain(row, factor, v), chance.next(), v)
            })
            .collect();
        values.sort_unstable();
        values.into_iter().map(|(.., v)| v).collect()
    }

    /// Sets what is not set of a group, the factor with the fewest admissible values first; false where none
    /// will do.
    fn fill(
        &self,
        ledger: &Ledger<'_>,
        row: &mut [Option<usize>],
        group: &[usize],
        chance: &mut SplitMix64,
        tried: &mut usize,
    ) -> bool {
        let unset: Vec<usize> = group.iter().copied().filter(|&f| row[f].is_none()).collect();
        // Of equal ones any, so that the order of keys favours none.
        let scarcest = unset.into_iter().map(|f| (self.n_admissible(row, f), chance.next(), f)).min();
        let Some((_, _, factor)) = scarcest else { return true };
        for value in self.order(ledger, row, factor, chance) {
            *tried += 1;
            assert!(*tried < MAX_TRIED, "no row with {row:?} after {MAX_TRIED} values");
            row[factor] = Some(value);
            if !self.is_broken(row, factor) && self.fill(ledger, row, group, chance, tried) {
                return true;
            }
        }
        row[factor] = None;
        false
    }

    /// A row with the given values; none where the rules do not let it be.
    fn row(&self, ledger: &Ledger<'_>, given: &[(usize, usize)], chance: &mut SplitMix64) -> Option<Row> {
        let mut row = vec![None; self.space.factors.len()];
        given.iter().for_each(|&(factor, value)| row[factor] = Some(value));
        if given.iter().any(|&(factor, _)| self.is_broken(&row, factor)) {
            return None;
        }
        // The factor that decides what the others are worth comes first.
        let hidden = self.space.hidden.factor;
        let values =
            row[hidden].map_or_else(|| self.order(ledger, &row, hidden, chance), |value| vec![value]);
        let of_hidden = self.groups.iter().find(|group| group.contains(&hidden)).expect("a group each");
        values.into_iter().find(|&value| {
            row[hidden] = Some(value);
            !self.is_broken(&row, hidden) && self.fill(ledger, &mut row, of_hidden, chance, &mut 0)
        })?;
        let mut groups: Vec<_> = self.groups.iter().map(|group| (chance.next(), group)).collect();
        groups.sort_unstable();
        let is_full = groups.into_iter().all(|(_, group)| self.fill(ledger, &mut row, group, chance, &mut 0));
        if !is_full {
            return None;
        }
        row.into_iter().collect()
    }
}

/// The rows for a seed.
pub fn cover(space: &Space, seed: u64) -> Array {
    let mut chance = SplitMix64::new(seed);
    let mut ledger = Ledger::new(space);
    let hidden = &space.hidden;
    assert!(
        space.factors[hidden.factor].reluctant.contains(&hidden.value),
        "it would hide what was asked for"
    );
    let search = Search::new(space, None);
    let mut open: Vec<_> =
        (ledger.combinations().into_iter()).map(|combination| (chance.next(), combination)).collect();
    open.sort_unstable();
    let mut rows = Vec::new();
    for (_, combination) in open {
        if *ledger.state_mut(&combination) != State::Wanted {
            continue;
        }
        let Some(first) = search.row(&ledger, &combination, &mut chance) else {
            *ledger.state_mut(&combination) = State::Impossible;
            continue;
        };
        let more = (1..CANDIDATES).filter_map(|_| search.row(&ledger, &combination, &mut chance));
        let all: Vec<Row> = std::iter::once(first).chain(more).collect();
        let worth = |row: &Row| -> usize {
            let mut built = vec![None; row.len()];
            let mut sum = 0;
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by_key(|&f| f != space.hidden.factor);
            for factor in order {
                sum += ledger.gain(&built, factor, row[factor]);
                built[factor] = Some(row[factor]);
            }
            sum
        };
        let best = all.into_iter().max_by_key(|row| worth(row)).expect("there is one");
        ledger.take(&best);
        assert!(
            *ledger.state_mut(&combination) == State::Met,
            "a row that was made for {combination:?} does not show it"
        );
        rows.push(best);
    }
    Array { pairs: Ledger::count(&ledger.pairs), triples: Ledger::count(&ledger.triples), rows }
}

/// Rows that break one rule each, and one alone: `per_rule` of each rule that the program refuses.
pub fn refused(space: &Space, seed: u64, per_rule: usize) -> Vec<(usize, Row)> {
    let mut chance = SplitMix64::new(seed);
    let ledger = Ledger::new(space);
    let mut rows = Vec::new();
    for (r, rule) in space.rules.iter().enumerate().filter(|(_, rule)| rule.refused) {
        let search = Search::new(space, Some(r));
        let mut broken: Vec<_> = all_values(space, &rule.factors)
            .into_iter()
            .filter(|values| breaks(space, rule, values))
            .map(|values| (chance.next(), rule.factors.iter().copied().zip(values).collect::<Vec<_>>()))
            .collect();
        broken.sort_unstable();
        let found = broken.iter().filter_map(|(_, given)| search.row(&ledger, given, &mut chance));
        let found: Vec<Row> = found.take(per_rule).collect();
        let names: Vec<&str> = rule.factors.iter().map(|&f| space.factors[f].name.as_str()).collect();
        assert!(!found.is_empty(), "the rule of {names:?} cannot be broken alone");
        rows.extend(found.into_iter().map(|row| (r, row)));
    }
    rows
}

#[test]
fn every_pair_and_the_wanted_triples_meet_but_for_those_that_the_rules_exclude() {
    let factor = |name: &str, n: usize| Factor {
        name: name.into(),
        values: (0..n).map(|v| v.to_string()).collect(),
        reluctant: Vec::new(),
    };
    let sizes = [3, 2, 4, 2, 3, 2];
    let mut factors: Vec<Factor> =
        sizes.iter().enumerate().map(|(i, &n)| factor(&i.to_string(), n)).collect();
    factors[5].reluctant = vec![1];
    // 1 with 1 of factors 0 and 1; and through 3 = 1 (which takes 0 = 2) no 4 = 2 (which takes 0 = 0).
    let rule = |factors: &[usize], breaks: fn(&[&str]) -> bool| Rule {
        factors: factors.to_vec(),
        breaks: Box::new(breaks),
        refused: true,
    };
    let rules = vec![
        rule(&[0, 1], |v| v == ["1", "1"]),
        rule(&[3, 0], |v| v[0] == "1" && v[1] != "2"),
        rule(&[4, 0], |v| v[0] == "2" && v[1] != "0"),
    ];
    // Rows with 5 = 1 show what 2 does alone.
    let hidden = Hidden { factor: 5, value: 1, shown: vec![2, 5] };
    let space = Space { factors, rules, triples_of: vec![1, 2, 4], hidden };
    let array = cover(&space, 1);
    // By hand: (0=1, 1=1), (3=1, 0=0), (3=1, 0=1), (4=2, 0=1), (4=2, 0=2), (3=1, 4=2).
    let pairs: usize = (0..6).flat_map(|a| (a + 1..6).map(move |b| sizes[a] * sizes[b])).sum();
    assert_eq!(array.pairs, Count { wanted: pairs, impossible: 6, met: pairs - 6 });
    assert_eq!(array.triples, Count { wanted: 2 * 4 * 3, impossible: 0, met: 2 * 4 * 3 });
    // Counted anew, from the rows alone.
    let shows = |row: &Row, f: &[usize]| row[5] == 0 || f.iter().any(|f| [2, 5].contains(f));
    let mut met = std::collections::BTreeSet::new();
    for row in &array.rows {
        let broken = |rule: &Rule| {
            let values: Vec<usize> = rule.factors.iter().map(|&f| row[f]).collect();
            breaks(&space, rule, &values)
        };
        assert!(!space.rules.iter().any(broken));
        for (a, &i) in row.iter().enumerate() {
            for (b, &j) in row.iter().enumerate().skip(a + 1).filter(|(b, _)| shows(row, &[a, *b])) {
                met.insert((a, i, b, j));
            }
        }
    }
    assert_eq!(met.len(), pairs - 6);
    assert!(array.rows.len() < 60, "{} rows", array.rows.len());
    assert_eq!(cover(&space, 1).rows, array.rows, "the same for the same seed");
    assert_ne!(cover(&space, 2).rows, array.rows, "another one for another seed");
    for (r, row) in refused(&space, 1, 2) {
        for (other, rule) in space.rules.iter().enumerate() {
            let values: Vec<&str> =
                rule.factors.iter().map(|&f| space.factors[f].values[row[f]].as_str()).collect();
            assert_eq!((rule.breaks)(&values), other == r, "rule {other} of a row that breaks {r}");
        }
    }
}
