//! The sorted list of buckets.
#![deny(unsafe_code)]

use super::fit::{CostModel, FitOptions, fit};

/// How a ladder is made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LadderOptions {
    /// The most tokens of a batch that is to be replayed. Zero: none is.
    pub max_tokens: usize,
    /// The most tokens of a batch that there can be, if the engine cuts prompts into chunks. The maximum is clamped to it.
    pub chunk: Option<usize>,
    /// These buckets instead of the rule's: sorted, deduplicated and clamped to the maximum.
    pub explicit: Option<Vec<usize>>,
    /// Leave the maximum out of an explicit list that does not have it. Batches above the list's largest then run eagerly.
    pub without_maximum: bool,
    /// Buckets are multiples of this, for kernels that want it. Each is rounded up, the maximum too, so that the largest batch still has a bucket. Zero and one:
    /// any.
    pub multiple_of: usize,
    /// The smallest bucket of the rule, below 16: from it each is twice the one before, up to 16. Zero: 16 is the smallest. Without such buckets a batch of
    /// one row is padded to 16, which a limit on padding sends to eager.
    pub smallest: usize,
}

impl LadderOptions {
    /// Up to this many tokens.
    pub fn new(max_tokens: usize) -> LadderOptions {
        LadderOptions { max_tokens, ..LadderOptions::default() }
    }

    /// With chunks of this many tokens at most.
    #[must_use]
    pub fn chunk(mut self, tokens: usize) -> LadderOptions {
        self.chunk = Some(tokens).filter(|&tokens| tokens > 0);
        self
    }

    /// With multiples of this alone.
    #[must_use]
    pub fn multiple_of(mut self, rows: usize) -> LadderOptions {
        self.multiple_of = rows;
        self
    }

    /// With buckets below 16, from this one.
    #[must_use]
    pub fn smallest(mut self, rows: usize) -> LadderOptions {
        self.smallest = rows;
        self
    }

    /// Without the maximum, where an explicit list does not have it.
    #[must_use]
    pub fn without_maximum(mut self) -> LadderOptions {
        self.without_maximum = true;
        self
    }

    /// With these buckets.
    #[must_use]
    pub fn explicit(mut self, buckets: impl Into<Vec<usize>>) -> LadderOptions {
        self.explicit = Some(buckets.into());
        self
    }
}

/// Buckets in ascending order, in rows. A batch goes to the smallest that holds it; above the largest it runs eagerly.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ladder {
    buckets: Vec<usize>,
    /// Sizes of an explicit list that were above the maximum.
    clamped: usize,
    /// The maximum that was asked for, where the chunk is less.
    clamped_from: Option<usize>,
}

/// A ladder in figures, over batches of every size from 1 to its largest bucket, each as likely.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct LadderReport {
    /// Buckets.
    pub buckets: usize,
    /// Their rows in sum: what captures cost that is proportional to rows.
    pub rows: usize,
    /// The mean of padded rows over valid rows.
    pub mean_padding: f64,
    /// The largest number of padded rows over valid rows among batches of at least the smallest bucket.
    pub worst_padding: f64,
    /// Sizes of an explicit list that were above the maximum, and were clamped to it.
    pub clamped: usize,
    /// The maximum that was asked for, where it was clamped to the chunk.
    pub clamped_from: Option<usize>,
}

/// What becomes of measured batches on a ladder.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct LadderUsage {
    /// Batches that have rows.
    pub batches: u64,
    /// Those that are replayed.
    pub replayed: u64,
    /// Those that run eagerly as they would be padded too much.
    pub over_limit: u64,
    /// Those that run eagerly as they have more rows than the largest bucket.
    pub above_largest: u64,
    /// Padded rows over valid rows, of those that are replayed.
    pub padding: f64,
}

impl LadderUsage {
    /// The share of the batches that the padding limit sends to eager.
    pub fn share_over_limit(&self) -> f64 {
        share(self.over_limit, self.batches)
    }

    /// The share of the batches that run eagerly, for either reason.
    pub fn share_eager(&self) -> f64 {
        share(self.batches.saturating_sub(self.replayed), self.batches)
    }
}

fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// A bucket of a ladder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bucket {
    /// Its place in the ladder.
    pub(super) index: usize,
    pub(super) rows: usize,
    /// The place of its capture under a key, among those of all keys: under the first it is the ladder's.
    pub(super) slot: usize,
}

/// Steps are this long at least, and this long at most.
const SHORTEST: usize = 16;
const LONGEST: usize = 512;
/// Where the rule would make more buckets than about this many, from some eight million rows on, its longest step is longer.
const MOST: usize = 1 << 14;

/// Padded rows over valid rows of a batch in a bucket.
pub(super) fn padding(bucket: usize, rows: usize) -> f64 {
    bucket.saturating_sub(rows) as f64 / rows as f64
}

impl Ladder {
    /// By the rule, or from an explicit list: from `min(16, max)` each step is 16 while an eighth of the size is no more than that, then the
    /// largest power of two that is no more than an eighth of the size, at most 512; the maximum ends it.
    ///
    /// ```
    /// use breakable_cuda_graph::prefill::{Ladder, LadderOptions};
    ///
    /// let ladder = Ladder::new(&LadderOptions::new(300));
    /// assert_eq!(ladder.buckets()[..3], [16, 32, 48]);
    /// assert_eq!((ladder.bucket_for(40), ladder.bucket_for(300), ladder.bucket_for(301)), (Some(48), Some(300), None));
    /// assert_eq!(Ladder::new(&LadderOptions::new(300).explicit([64, 128])).buckets(), [64, 128, 300]);
    /// ```
    pub fn new(options: &LadderOptions) -> Ladder {
        let max = options.chunk.map_or(options.max_tokens, |chunk| options.max_tokens.min(chunk));
        if max == 0 {
            return Ladder::default();
        }
        let round = |bucket: usize| round_up(bucket, options.multiple_of);
        let (mut buckets, clamped) = match &options.explicit {
            Some(list) => {
                let fitting = list.iter().filter(|bucket| **bucket > 0);
                let buckets = fitting.map(|&bucket| round(bucket.min(max))).collect();
                (buckets, list.iter().filter(|bucket| **bucket > max).count())
            }
            None => (by_rule(max, options.smallest).into_iter().map(round).collect::<Vec<_>>(), 0),
        };
        if options.explicit.is_none() || !options.without_maximum {
            buckets.push(round(max));
        }
        buckets.sort_unstable();
        buckets.dedup();
        Ladder { buckets, clamped, clamped_from: Some(options.max_tokens).filter(|asked| *asked > max) }
    }

    /// The ladder of at most `most` buckets that ends at `max` and costs least for a measured distribution: `histogram[n]` batches had `n` rows.
    /// Batches of more than `max` rows don't count, as they run eagerly. See [`fit_with`](Ladder::fit_with).
    pub fn fit(histogram: &[u64], most: usize, max: usize, costs: &CostModel) -> Ladder {
        Ladder::fit_with(histogram, &FitOptions::new(most, max).costs(costs.clone()))
    }

    /// As [`fit`](Ladder::fit), with more to say of the buckets. It takes bounded time and memory for any numbers: no more than 4096 buckets are made, and
    /// of very many sizes and buckets neighbouring sizes are taken together.
    ///
    /// ```
    /// use breakable_cuda_graph::prefill::{FitOptions, Ladder};
    ///
    /// let histogram: Vec<u64> = (0..=100).map(|rows| u64::from(rows % 10 == 3)).collect(); // 3, 13, .. rows.
    /// let ladder = Ladder::fit_with(&histogram, &FitOptions::new(3, 100).multiple_of(8));
    /// assert_eq!(ladder.buckets(), [24, 64, 104]);
    /// ```
    pub fn fit_with(histogram: &[u64], options: &FitOptions) -> Ladder {
        Ladder { buckets: fit(histogram, options), ..Ladder::default() }
    }

    /// The buckets, ascending.
    pub fn buckets(&self) -> &[usize] {
        &self.buckets
    }

    /// The largest, if there is any.
    pub fn largest(&self) -> Option<usize> {
        self.buckets.last().copied()
    }

    /// The smallest bucket that holds a batch of this many rows.
    pub fn bucket_for(&self, rows: usize) -> Option<usize> {
        self.find(rows).map(|bucket| bucket.rows)
    }

    /// The smallest bucket that holds a batch of this many rows.
    pub(super) fn find(&self, rows: usize) -> Option<Bucket> {
        self.at(self.buckets.partition_point(|&bucket| bucket < rows))
    }

    /// The bucket of this many rows.
    pub(super) fn exactly(&self, rows: usize) -> Option<Bucket> {
        self.buckets.binary_search(&rows).ok().map(|index| Bucket { index, rows, slot: index })
    }

    /// The bucket at this place.
    pub(super) fn at(&self, index: usize) -> Option<Bucket> {
        self.buckets.get(index).map(|&rows| Bucket { index, rows, slot: index })
    }

    /// The bucket as it is captured under the key of this number.
    pub(super) fn under(&self, bucket: Bucket, key: usize) -> Bucket {
        Bucket { slot: key * self.buckets.len() + bucket.index, ..bucket }
    }

    /// All buckets, the largest first.
    pub(super) fn descending(&self) -> impl Iterator<Item = Bucket> + '_ {
        self.buckets.iter().enumerate().map(|(index, &rows)| Bucket { index, rows, slot: index }).rev()
    }

    /// The ladder in figures.
    pub fn report(&self) -> LadderReport {
        let Some(largest) = self.largest() else {
            return LadderReport { clamped: self.clamped, clamped_from: self.clamped_from, ..LadderReport::default() };
        };
        let before = [0].iter().chain(&self.buckets);
        let steps = || before.clone().zip(&self.buckets).map(|(&before, &bucket)| (before, bucket));
        // The batches of a step of n rows are padded by 0 to n - 1.
        let padded: f64 = steps().map(|(before, bucket)| sum_up_to(bucket - before - 1)).sum();
        let worst = steps().skip(1).map(|(before, bucket)| padding(bucket, before + 1));
        LadderReport {
            buckets: self.buckets.len(),
            rows: self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(*bucket)),
            mean_padding: padded / sum_up_to(largest),
            worst_padding: worst.fold(0.0, f64::max),
            clamped: self.clamped,
            clamped_from: self.clamped_from,
        }
    }

    /// What becomes of measured batches: `histogram[n]` had `n` rows. `padding_limit`: as for
    /// [`RunnerOptions::padding_limit`](super::RunnerOptions::padding_limit).
    ///
    /// ```
    /// use breakable_cuda_graph::prefill::{Ladder, LadderOptions};
    ///
    /// let histogram = [0, 30, 0, 0, 0, 0, 0, 0, 0, 0, 70]; // 30 batches of one row, 70 of ten.
    /// let share = |options: LadderOptions| Ladder::new(&options).usage(&histogram, Some(1.0)).share_over_limit();
    /// assert_eq!(share(LadderOptions::new(512)), 0.3); // One row would be padded to 16.
    /// assert_eq!(share(LadderOptions::new(512).smallest(1)), 0.0);
    /// ```
    pub fn usage(&self, histogram: &[u64], padding_limit: Option<f64>) -> LadderUsage {
        let mut usage = LadderUsage::default();
        let (mut padded, mut valid) = (0.0, 0.0);
        for (rows, &batches) in histogram.iter().enumerate().skip(1) {
            let place = match self.bucket_for(rows) {
                None => &mut usage.above_largest,
                Some(bucket) if padding_limit.is_some_and(|limit| padding(bucket, rows) > limit) => {
                    &mut usage.over_limit
                }
                Some(bucket) => {
                    padded += (bucket - rows) as f64 * batches as f64;
                    valid += rows as f64 * batches as f64;
                    &mut usage.replayed
                }
            };
            *place = place.saturating_add(batches);
        }
        usage.batches = usage.replayed.saturating_add(usage.over_limit).saturating_add(usage.above_largest);
        usage.padding = if valid == 0.0 { 0.0 } else { padded / valid };
        usage
    }
}

/// `1 + 2 + .. + n`.
fn sum_up_to(n: usize) -> f64 {
    n as f64 * (n as f64 + 1.0) / 2.0
}

/// Up to a multiple; down where there is no number above.
pub(super) fn round_up(rows: usize, multiple: usize) -> usize {
    let multiple = multiple.max(1);
    rows.div_ceil(multiple).checked_mul(multiple).unwrap_or(rows - rows % multiple)
}

/// The rule's buckets below the maximum.
fn by_rule(max: usize, smallest: usize) -> Vec<usize> {
    let mut buckets = Vec::new();
    let shortest = if smallest == 0 { SHORTEST } else { smallest.min(SHORTEST) };
    let longest = LONGEST.max((max / MOST).next_power_of_two());
    let mut size = shortest.min(max);
    while size < max {
        buckets.push(size);
        let eighth = size / 8;
        size = if size < SHORTEST {
            (2 * size).min(SHORTEST)
        } else {
            let step = if eighth <= SHORTEST { SHORTEST } else { longest.min(1 << eighth.ilog2()) };
            size.saturating_add(step)
        };
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::{Ladder, LadderOptions, padding};

    fn ladder(options: LadderOptions) -> Vec<usize> {
        Ladder::new(&options).buckets().to_vec()
    }

    #[test]
    fn disabled() {
        assert!(ladder(LadderOptions::new(0)).is_empty());
        assert!(ladder(LadderOptions::new(0).explicit([16, 32])).is_empty());
        assert_eq!(Ladder::default().bucket_for(1), None);
        assert_eq!(Ladder::default().report().buckets, 0);
    }

    #[test]
    fn clamped_to_chunk() {
        assert_eq!(ladder(LadderOptions::new(8192).chunk(2048)).last(), Some(&2048));
        assert_eq!(ladder(LadderOptions::new(8192).chunk(0)).last(), Some(&8192), "no chunk");
    }

    #[test]
    fn relative_ladder_properties() {
        for max in [8192, 2048, 1500] {
            let buckets = ladder(LadderOptions::new(max).chunk(max));
            assert_eq!(buckets.last(), Some(&max));
            for pair in buckets.windows(2) {
                let (size, gap) = (pair[0], pair[1] - pair[0]);
                assert!(pair[0] < pair[1] && gap <= 512, "{pair:?}");
                assert!(size < 256 || gap <= (size / 8).max(16), "{pair:?}");
            }
        }
    }

    #[test]
    fn explicit_capture_sizes() {
        let options = LadderOptions::new(2048).explicit([256, 1024, 4096]);
        assert_eq!(ladder(options), [256, 1024, 2048]);
        let options = LadderOptions::new(2048).explicit([1024, 256, 256, 0]);
        assert_eq!(ladder(options.clone()), [256, 1024, 2048], "the maximum is a member");
        assert_eq!(ladder(options.without_maximum()), [256, 1024], "unless told otherwise");
    }

    #[test]
    fn the_default_ladders_in_figures() {
        let figures = [512, 1024, 2048, 4096, 8192, 16_384].map(|max| Ladder::new(&LadderOptions::new(max)).report());
        assert_eq!(figures.map(|report| report.buckets), [24, 32, 40, 48, 56, 72]);
        assert_eq!(figures[2].rows, 24_576);
        assert!((figures[2].mean_padding - 0.0415).abs() < 0.000_05, "{:?}", figures[2]);
    }

    #[test]
    fn a_batch_goes_to_the_smallest_bucket_that_holds_it() {
        let ladder = Ladder::new(&LadderOptions::new(700));
        assert_eq!(ladder.largest(), Some(700), "the maximum is a member");
        for (rows, bucket) in
            [(0, Some(16)), (1, Some(16)), (16, Some(16)), (17, Some(32)), (700, Some(700)), (701, None)]
        {
            assert_eq!(ladder.bucket_for(rows), bucket, "{rows}");
        }
        assert_eq!(self::ladder(LadderOptions::new(3)), [3]);
    }
    /// Buckets below 16 double, so that no batch is padded to more than twice its rows.
    #[test]
    fn short_batches_have_buckets_where_they_are_asked_for() {
        assert_eq!(ladder(LadderOptions::new(40).smallest(1)), [1, 2, 4, 8, 16, 32, 40]);
        assert_eq!(ladder(LadderOptions::new(20).smallest(3)), [3, 6, 12, 16, 20]);
        assert_eq!(ladder(LadderOptions::new(20).smallest(99)), [16, 20]);
        assert_eq!(ladder(LadderOptions::new(3).smallest(2)), [2, 3]);
        let short = Ladder::new(&LadderOptions::new(512).smallest(1));
        assert!((1..=512).all(|rows| padding(short.bucket_for(rows).expect("a bucket"), rows) <= 1.0));
        assert!(short.report().worst_padding <= 1.0);
    }

    #[test]
    fn buckets_are_multiples_where_that_is_asked_for() {
        let all = [
            LadderOptions::new(1500),
            LadderOptions::new(1500).smallest(1),
            LadderOptions::new(1500).chunk(1001),
            LadderOptions::new(1500).explicit([3, 100, 1499]),
        ];
        for options in all {
            let buckets = ladder(options.clone().multiple_of(8));
            assert!(buckets.iter().all(|bucket| bucket % 8 == 0), "{buckets:?}");
            let largest = Ladder::new(&options).largest().expect("a maximum");
            assert_eq!(buckets.last(), Some(&largest.next_multiple_of(8)), "the largest batch has a bucket");
        }
        assert_eq!(ladder(LadderOptions::new(usize::MAX).explicit([5]).multiple_of(8)), [8, usize::MAX - 7]);
        assert_eq!(ladder(LadderOptions::new(20).multiple_of(0)), [16, 20]);
    }

    #[test]
    fn the_report_says_what_was_clamped() {
        let report = Ladder::new(&LadderOptions::new(16).explicit([32, 8, 64])).report();
        assert_eq!((report.buckets, report.clamped, report.clamped_from), (2, 2, None));
        let report = Ladder::new(&LadderOptions::new(4096).chunk(1024)).report();
        assert_eq!((report.clamped, report.clamped_from), (0, Some(4096)));
        assert_eq!(Ladder::new(&LadderOptions::new(64)).report().clamped_from, None);
    }

    /// By arithmetic as by counting.
    #[test]
    fn the_report_is_that_of_every_batch() {
        for options in
            [LadderOptions::new(700), LadderOptions::new(700).smallest(1), LadderOptions::new(90).explicit([1, 2, 50])]
        {
            let ladder = Ladder::new(&options);
            let largest = ladder.largest().expect("one");
            let bucket = |rows| ladder.bucket_for(rows).expect("a bucket");
            let padded: usize = (1..=largest).map(|rows| bucket(rows) - rows).sum();
            let mean = padded as f64 / (1..=largest).sum::<usize>() as f64;
            let worst = (ladder.buckets()[0]..=largest).map(|rows| padding(bucket(rows), rows)).fold(0.0, f64::max);
            let report = ladder.report();
            assert!((report.mean_padding - mean).abs() < 1e-12 && (report.worst_padding - worst).abs() < 1e-12);
        }
    }

    #[test]
    fn what_becomes_of_measured_batches() {
        let ladder = Ladder::new(&LadderOptions::new(32).explicit([8, 32]));
        let histogram: Vec<u64> = (0..40).collect();
        let usage = ladder.usage(&histogram, Some(1.0));
        let sum = |rows: std::ops::RangeInclusive<u64>| rows.sum::<u64>();
        assert_eq!((usage.batches, usage.above_largest), (sum(1..=39), sum(33..=39)));
        assert_eq!(usage.over_limit, sum(1..=3) + sum(9..=15));
        assert_eq!(usage.replayed, sum(4..=8) + sum(16..=32));
        assert!((usage.share_over_limit() - 90.0 / 780.0).abs() < 1e-12, "{usage:?}");
        assert!((usage.share_eager() - (90.0 + 252.0) / 780.0).abs() < 1e-12, "{usage:?}");
        assert_eq!(ladder.usage(&histogram, None).over_limit, 0);
        assert_eq!(Ladder::default().usage(&[5, 6], None).share_eager(), 1.0);
        assert_eq!(ladder.usage(&[], Some(0.0)).share_over_limit(), 0.0);
        assert_eq!(ladder.usage(&[0, u64::MAX, u64::MAX], None).batches, u64::MAX);
    }

    /// Whatever the numbers are, they are made at once.
    #[test]
    fn ladders_of_any_numbers_are_made() {
        for max in [usize::MAX, usize::MAX / 2, 1 << 40, 1 << 23] {
            for options in [LadderOptions::new(max), LadderOptions::new(max).smallest(1).multiple_of(8)] {
                let ladder = Ladder::new(&options);
                let report = ladder.report();
                assert!(report.buckets < 20_000 && report.worst_padding < 1.0, "{report:?}");
                assert!(ladder.buckets().windows(2).all(|pair| pair[0] < pair[1]));
                assert!(report.mean_padding.is_finite() && report.rows > 0);
            }
        }
        assert_eq!(
            Ladder::new(&LadderOptions::new(1 << 22)).report().buckets,
            24 + 8 * 5 + ((1 << 22) - 8192) / 512 - 8
        );
    }
}
