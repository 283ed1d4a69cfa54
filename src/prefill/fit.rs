//! Fitting a ladder to a measured distribution of batch sizes, by dynamic programming.
#![deny(unsafe_code)]

use super::ladder::round_up;

/// What a batch costs in a bucket.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub enum CostModel {
    /// The bucket's rows.
    #[default]
    Rows,
    /// Measured: `table[rows]`, say in milliseconds. Sizes past its end cost what its last entry does, per row.
    Table(Vec<f64>),
}

impl CostModel {
    fn of(&self, bucket: usize) -> f64 {
        match self {
            CostModel::Rows => bucket as f64,
            CostModel::Table(table) => match (table.get(bucket), table.last()) {
                (Some(&cost), _) => cost,
                (None, Some(&last)) => last * bucket as f64 / (table.len() - 1).max(1) as f64,
                (None, None) => bucket as f64,
            },
        }
    }
}

/// How a ladder is fitted.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct FitOptions {
    /// The most buckets.
    pub most: usize,
    /// The largest, in rows.
    pub max: usize,
    /// Buckets are multiples of this, the largest too, which is rounded up. Zero and one: any.
    pub multiple_of: usize,
    /// What a batch costs.
    pub costs: CostModel,
}

impl FitOptions {
    /// At most so many buckets, up to `max` rows.
    pub fn new(most: usize, max: usize) -> FitOptions {
        FitOptions { most, max, multiple_of: 1, costs: CostModel::default() }
    }

    /// With multiples of this alone.
    #[must_use]
    pub fn multiple_of(mut self, rows: usize) -> FitOptions {
        self.multiple_of = rows;
        self
    }

    /// With these costs.
    #[must_use]
    pub fn costs(mut self, costs: CostModel) -> FitOptions {
        self.costs = costs;
        self
    }
}

/// The most buckets that a fitted ladder has.
const MOST_BUCKETS: usize = 4096;
/// The most places of the table, sizes times buckets: above it neighbouring sizes are taken together.
const MOST_PLACES: usize = 1 << 24;
/// No size came before.
const NONE: u32 = u32::MAX;

/// A line `slope * x + start`: the cost so far of a ladder that ends at a candidate, as the next bucket's cost varies.
#[derive(Clone, Copy)]
struct Line {
    slope: f64,
    start: f64,
    candidate: usize,
}

/// The buckets that cost least, at most `most` of them, `max` the last.
///
/// A bucket that no batch ends at could be lowered to the largest batch below it, so only sizes that occur are candidates, and `max`. With `w[j]`
/// batches up to candidate `j` of cost `c[j]`, the best ladder of k buckets that ends at j costs `min over i < j of best[k-1][i] + (w[j] - w[i]) c[j]`:
/// the lowest at `c[j]` of the lines `best[k-1][i] - w[i] x`, whose slopes fall with i, so their lower hull is kept and searched.
pub(super) fn fit(histogram: &[u64], options: &FitOptions) -> Vec<usize> {
    let FitOptions { most, max, multiple_of, costs } = options;
    if *max == 0 || *most == 0 {
        return Vec::new();
    }
    let most = (*most).min(MOST_BUCKETS);
    // Sizes, ascending, with the batches that go to each where all are buckets.
    let mut sizes: Vec<(usize, f64)> = Vec::new();
    let seen = histogram.iter().enumerate().take(max.saturating_add(1)).skip(1).filter(|(_, count)| **count > 0);
    for (rows, count) in seen
        .map(|(rows, count)| (round_up(rows, *multiple_of), *count as f64))
        .chain([(round_up(*max, *multiple_of), 0.0)])
    {
        match sizes.last_mut() {
            Some((last, batches)) if *last == rows => *batches += count,
            _ => sizes.push((rows, count)),
        }
    }
    let sizes = thinned(sizes, MOST_PLACES / most.max(1));
    let candidates: Vec<usize> = sizes.iter().map(|(size, _)| *size).collect();
    let mut weights = vec![0.0];
    for (_, batches) in &sizes {
        weights.push(weights[weights.len() - 1] + batches);
    }
    let cost: Vec<f64> = candidates.iter().map(|&candidate| costs.of(candidate)).collect();

    // Row k: the least cost of k + 1 buckets that end at each candidate; and which candidate came before the last.
    let mut best: Vec<f64> = (0..candidates.len()).map(|j| weights[j + 1] * cost[j]).collect();
    let mut before_last: Vec<Vec<u32>> = vec![vec![NONE; candidates.len()]];
    for _ in 1..most.min(candidates.len()) {
        let (mut next, mut from) = (best.clone(), vec![NONE; candidates.len()]);
        let mut hull: Vec<Line> = Vec::new();
        for j in 1..candidates.len() {
            push(&mut hull, Line { slope: -weights[j], start: best[j - 1], candidate: j - 1 });
            let line = lowest(&hull, cost[j]);
            let through = weights[j + 1] * cost[j] + line.slope * cost[j] + line.start;
            if through < next[j] {
                (next[j], from[j]) = (through, line.candidate as u32);
            }
        }
        best = next;
        before_last.push(from);
    }

    let (mut at, mut row) = (candidates.len() - 1, before_last.len() - 1);
    let mut buckets = vec![candidates[at]];
    loop {
        match before_last[row][at] {
            // Fewer buckets do as well.
            NONE if row > 0 => row -= 1,
            NONE => break,
            earlier => {
                at = earlier as usize;
                buckets.push(candidates[at]);
                row -= 1;
            }
        }
    }
    buckets.reverse();
    buckets
}

/// At most so many sizes, at least one: of neighbours the largest stays, with the batches of all.
fn thinned(sizes: Vec<(usize, f64)>, most: usize) -> Vec<(usize, f64)> {
    let group = sizes.len().div_ceil(most.max(1)).max(1);
    if group == 1 {
        return sizes;
    }
    // The last group is full, so that its largest is the maximum.
    let first = sizes.len() % group;
    let (head, tail) = sizes.split_at(first);
    let largest = |group: &[(usize, f64)]| {
        let batches = group.iter().map(|(_, batches)| batches).sum();
        group.last().map(|(size, _)| (*size, batches))
    };
    std::iter::once(head).chain(tail.chunks(group)).filter_map(largest).collect()
}

/// Adds a line of a lower slope to the lower hull.
fn push(hull: &mut Vec<Line>, line: Line) {
    while let [.., a, b] = hull[..] {
        // b is never lowest when the new line meets a no later than b does.
        let useless = (line.start - a.start) * (a.slope - b.slope) <= (b.start - a.start) * (a.slope - line.slope);
        if !useless {
            break;
        }
        hull.pop();
    }
    match hull.last() {
        Some(last) if last.slope == line.slope && last.start <= line.start => {}
        Some(last) if last.slope == line.slope => {
            hull.pop();
            push(hull, line);
        }
        _ => hull.push(line),
    }
}

/// The line of the hull that is lowest at `x`; the hull is not empty.
fn lowest(hull: &[Line], x: f64) -> Line {
    let at = |line: &Line| line.slope * x + line.start;
    let (mut low, mut high) = (0, hull.len() - 1);
    while low < high {
        let middle = (low + high) / 2;
        if at(&hull[middle]) <= at(&hull[middle + 1]) { high = middle } else { low = middle + 1 }
    }
    hull[low]
}

#[cfg(test)]
mod tests {
    use super::{CostModel, FitOptions};
    use proptest::prelude::*;

    fn fit(histogram: &[u64], most: usize, max: usize, costs: &CostModel) -> Vec<usize> {
        super::fit(histogram, &FitOptions::new(most, max).costs(costs.clone()))
    }

    fn total(histogram: &[u64], buckets: &[usize], costs: &CostModel) -> f64 {
        let max = buckets.last().copied().unwrap_or(0);
        let batches = histogram.iter().enumerate().skip(1).take(max);
        let cost = |rows: usize| buckets.iter().find(|bucket| **bucket >= rows).map_or(0.0, |bucket| costs.of(*bucket));
        batches.map(|(rows, &count)| count as f64 * cost(rows)).sum()
    }

    fn brute_force(histogram: &[u64], most: usize, max: usize, costs: &CostModel) -> f64 {
        let mut least = f64::INFINITY;
        for set in 0..1_u32 << (max - 1) {
            if (set.count_ones() as usize) < most {
                let mut buckets: Vec<usize> = (1..max).filter(|bucket| set >> (bucket - 1) & 1 == 1).collect();
                buckets.push(max);
                least = least.min(total(histogram, &buckets, costs));
            }
        }
        least
    }

    proptest! {
        #[test]
        fn as_good_as_trying_all(
            histogram in prop::collection::vec(0..20_u64, 1..14),
            most in 1..6_usize,
            max in 1..11_usize,
            table in prop::collection::vec(1..50_u32, 11),
            measured in any::<bool>(),
        ) {
            let mut table: Vec<f64> = table.into_iter().map(f64::from).collect();
            // A larger bucket never costs less.
            table.sort_by(f64::total_cmp);
            let costs = if measured { CostModel::Table(table) } else { CostModel::Rows };
            let buckets = fit(&histogram, most, max, &costs);
            prop_assert!(!buckets.is_empty() && buckets.len() <= most);
            prop_assert_eq!(buckets.last(), Some(&max));
            prop_assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]));
            let (got, least) = (total(&histogram, &buckets, &costs), brute_force(&histogram, most, max, &costs));
            prop_assert_eq!(got, least, "{:?}", buckets);
        }
    }

    /// With as many buckets as the rule's ladder has, the fitted one pads less, whatever the distribution.
    #[test]
    fn better_than_the_rule() {
        let rule = crate::prefill::Ladder::new(&crate::prefill::LadderOptions::new(2048));
        fn bell(x: f64, mean: f64, width: f64) -> f64 {
            (-0.5 * ((x - mean) / width).powi(2)).exp()
        }
        let weights: [fn(f64) -> f64; 3] =
            [|_| 1.0, |x| bell(x.ln(), 5.3, 1.0) / x * 100.0, |x| bell(x, 128.0, 40.0) + bell(x, 1500.0, 150.0)];
        for weight in weights {
            let histogram: Vec<u64> = (0..=2048).map(|x| (1e6 * weight(f64::from(x).max(1.0))) as u64).collect();
            let fitted = fit(&histogram, rule.buckets().len(), 2048, &CostModel::Rows);
            let [fitted, ruled] =
                [&fitted[..], rule.buckets()].map(|buckets| total(&histogram, buckets, &CostModel::Rows));
            assert!(fitted < ruled, "{fitted} and {ruled}");
        }
    }

    #[test]
    fn nothing_to_fit() {
        assert!(fit(&[0, 1], 0, 8, &CostModel::Rows).is_empty());
        assert!(fit(&[0, 1], 4, 0, &CostModel::Rows).is_empty());
        assert_eq!(fit(&[], 4, 8, &CostModel::Rows), [8]);
        assert_eq!(fit(&[9, 0, 0], 4, 8, &CostModel::Rows), [8]);
    }

    #[test]
    fn multiples() {
        let histogram: Vec<u64> = (0..=1500).map(|rows| 1 + rows * 7919 % 13).collect();
        let options = FitOptions::new(24, 1500).multiple_of(8);
        let buckets = super::fit(&histogram, &options);
        assert!(buckets.iter().all(|bucket| bucket % 8 == 0) && buckets.len() == 24, "{buckets:?}");
        assert_eq!(buckets.last(), Some(&1504));
        // As good as on sizes that were rounded before.
        let mut rounded = vec![0; 1505];
        histogram.iter().enumerate().skip(1).for_each(|(rows, count)| rounded[rows.next_multiple_of(8)] += count);
        let [direct, before] = [buckets, fit(&rounded, 24, 1504, &CostModel::Rows)]
            .map(|buckets| total(&rounded, &buckets, &CostModel::Rows));
        assert_eq!(direct, before);
    }

    /// In a moment, and in less than 100 MB.
    #[test]
    fn any_numbers_are_fitted() {
        let histogram = vec![1; 40_000];
        for (most, max) in [(usize::MAX, 40_000), (5000, 39_999), (2, usize::MAX), (usize::MAX, usize::MAX)] {
            let buckets = fit(&histogram, most, max, &CostModel::Rows);
            assert!(buckets.len() <= most.min(4096) && buckets.last() == Some(&max), "{most} {max}: {}", buckets.len());
            assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]));
        }
        let huge = [0, u64::MAX, u64::MAX, 1];
        assert_eq!(fit(&huge, 3, 3, &CostModel::Table(vec![f64::NAN; 2])).last(), Some(&3));
        assert_eq!(fit(&huge, 2, 3, &CostModel::Rows).last(), Some(&3));
    }
}
