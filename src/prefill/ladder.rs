//! The sorted list of buckets.
#![deny(unsafe_code)]

use super::fit::{CostModel, fit};

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
        let mut buckets = match &options.explicit {
            Some(list) => list.iter().map(|&bucket| bucket.min(max)).filter(|&bucket| bucket > 0).collect(),
            None => by_rule(max),
        };
        if options.explicit.is_none() || !options.without_maximum {
            buckets.push(max);
        }
        buckets.sort_unstable();
        buckets.dedup();
        Ladder { buckets }
    }

    /// The ladder of at most `most` buckets that ends at `max` and costs least for a measured distribution: `histogram[n]` batches had `n` rows.
    /// Batches of more than `max` rows don't count, as they run eagerly.
    pub fn fit(histogram: &[u64], most: usize, max: usize, costs: &CostModel) -> Ladder {
        Ladder { buckets: fit(histogram, most, max, costs) }
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
        let Some(largest) = self.largest() else { return LadderReport::default() };
        let padding = |rows: usize| self.bucket_for(rows).map_or(0.0, |bucket| (bucket - rows) as f64 / rows as f64);
        let padded: usize = (1..=largest).filter_map(|rows| Some(self.bucket_for(rows)? - rows)).sum();
        let valid: usize = (1..=largest).sum();
        LadderReport {
            buckets: self.buckets.len(),
            rows: self.buckets.iter().sum(),
            mean_padding: padded as f64 / valid as f64,
            worst_padding: (self.buckets[0]..=largest).map(padding).fold(0.0, f64::max),
        }
    }
}

fn by_rule(max: usize) -> Vec<usize> {
    let mut buckets = Vec::new();
    let mut size = SHORTEST.min(max);
    while size < max {
        buckets.push(size);
        let eighth = size / 8;
        size += if eighth <= SHORTEST { SHORTEST } else { LONGEST.min(1 << eighth.ilog2()) };
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::{Ladder, LadderOptions};

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
        assert_eq!(ladder(LadderOptions { without_maximum: true, ..options }), [256, 1024], "unless told otherwise");
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
}
