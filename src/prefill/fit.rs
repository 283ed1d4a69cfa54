//! Fitting a ladder to a measured distribution of batch sizes, by dynamic programming.
#![deny(unsafe_code)]

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
pub(super) fn fit(histogram: &[u64], most: usize, max: usize, costs: &CostModel) -> Vec<usize> {
    if max == 0 || most == 0 {
        return Vec::new();
    }
    let seen = histogram.iter().enumerate().take(max).skip(1);
    let mut candidates: Vec<usize> = seen.filter(|(_, count)| **count > 0).map(|(rows, _)| rows).collect();
    candidates.push(max);
    let mut weights = vec![0.0];
    let mut before = 0;
    for &candidate in &candidates {
        let upto = (candidate + 1).min(histogram.len());
        let batches: u64 = histogram.get(before.max(1)..upto).unwrap_or_default().iter().sum();
        weights.push(weights[weights.len() - 1] + batches as f64);
        before = candidate + 1;
    }
    let cost: Vec<f64> = candidates.iter().map(|&candidate| costs.of(candidate)).collect();

    // Row k: the least cost of k + 1 buckets that end at each candidate; and which candidate came before the last.
    let mut best: Vec<f64> = (0..candidates.len()).map(|j| weights[j + 1] * cost[j]).collect();
    let mut before_last: Vec<Vec<Option<usize>>> = vec![vec![None; candidates.len()]];
    for _ in 1..most.min(candidates.len()) {
        let (mut next, mut from) = (best.clone(), vec![None; candidates.len()]);
        let mut hull: Vec<Line> = Vec::new();
        for j in 1..candidates.len() {
            push(&mut hull, Line { slope: -weights[j], start: best[j - 1], candidate: j - 1 });
            let line = lowest(&hull, cost[j]);
            let through = weights[j + 1] * cost[j] + line.slope * cost[j] + line.start;
            if through < next[j] {
                (next[j], from[j]) = (through, Some(line.candidate));
            }
        }
        best = next;
        before_last.push(from);
    }

    let (mut at, mut row) = (candidates.len() - 1, before_last.len() - 1);
    let mut buckets = vec![candidates[at]];
    loop {
        match before_last[row][at] {
            Some(earlier) => {
                buckets.push(candidates[earlier]);
                (at, row) = (earlier, row - 1);
            }
            // Fewer buckets do as well.
            None if row > 0 => row -= 1,
            None => break,
        }
    }
    buckets.reverse();
    buckets
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
    use super::{CostModel, fit};
    use proptest::prelude::*;

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
}
