//! The buffers in the planner's terms: sizes in units of the alignment, time in sections.
//!
//! A section is a set of buffers that are all live at one moment and to which no buffer can be added. Two buffers are live together exactly when
//! they share a section, so nothing else about time matters. The sections are in order of time, and a buffer lies in consecutive ones.

use super::types::{BufferSpec, PlanError};

/// What is to be placed.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) buffers: Vec<Buffer>,
    /// What is live in each section.
    pub(super) live: Vec<u64>,
    /// How many pairs of buffers are live together.
    pub(super) pairs: u64,
}

/// One buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    pub(super) size: u64,
    /// The first of its sections.
    pub(super) first: usize,
    /// The one after the last.
    pub(super) last: usize,
    /// How long it lives.
    pub(super) duration: u64,
}

impl Buffer {
    pub(super) fn area(&self) -> u128 {
        u128::from(self.size) * u128::from(self.duration)
    }
}

impl Problem {
    /// Checks and converts the buffers. `order` is theirs by begin.
    pub(super) fn new(specs: &[BufferSpec], order: &[usize], alignment: usize) -> Result<Problem, PlanError> {
        let mut buffers = Vec::with_capacity(specs.len());
        let mut sum = 0_usize;
        for (index, &BufferSpec { bytes, begin, end }) in specs.iter().enumerate() {
            if end <= begin {
                return Err(PlanError::Lifetime { index, begin, end });
            }
            let rounded = bytes.max(1).checked_next_multiple_of(alignment);
            let total = rounded.and_then(|rounded| sum.checked_add(rounded)).filter(|&sum| sum <= isize::MAX as usize);
            let (Some(rounded), Some(total)) = (rounded, total) else {
                return Err(PlanError::TooLarge { index, bytes });
            };
            sum = total;
            buffers.push(Buffer { size: (rounded / alignment) as u64, first: 0, last: 0, duration: end - begin });
        }
        Ok(Problem::sweep(buffers, specs, order))
    }

    /// A section is complete when a release follows an allocation. Releases go before allocations at the same time.
    fn sweep(mut buffers: Vec<Buffer>, specs: &[BufferSpec], order: &[usize]) -> Problem {
        let mut by_end: Vec<usize> = (0..specs.len()).collect();
        by_end.sort_by_key(|&index| specs[index].end);
        let (mut live, mut pairs) = (Vec::new(), 0);
        let (mut sum, mut count, mut complete) = (0, 0, false);
        let mut ends = by_end.into_iter().peekable();
        for &index in order {
            while let Some(ended) = ends.next_if(|&ended| specs[ended].end <= specs[index].begin) {
                if !complete {
                    live.push(sum);
                    complete = true;
                }
                buffers[ended].last = live.len();
                sum -= buffers[ended].size;
                count -= 1;
            }
            complete = false;
            buffers[index].first = live.len();
            sum += buffers[index].size;
            pairs += count;
            count += 1;
        }
        if !buffers.is_empty() {
            live.push(sum);
        }
        ends.for_each(|ended| buffers[ended].last = live.len());
        Problem { buffers, live, pairs }
    }

    /// The most that is live at once.
    pub(super) fn bound(&self) -> u64 {
        self.live.iter().copied().max().unwrap_or(0)
    }

    /// Where the highest buffer ends.
    pub(super) fn height(&self, offsets: &[u64]) -> u64 {
        self.buffers.iter().zip(offsets).map(|(buffer, offset)| offset + buffer.size).max().unwrap_or(0)
    }
}

/// Which buffers are live together, in lists of numbers, one list a buffer.
#[derive(Debug)]
pub(super) struct Overlaps {
    starts: Vec<usize>,
    others: Vec<usize>,
}

impl Overlaps {
    /// `order` is the buffers' by begin.
    pub(super) fn new(buffers: &[Buffer], order: &[usize]) -> Overlaps {
        let mut counts = vec![0; buffers.len()];
        pairs(buffers, order, |a, b| {
            counts[a] += 1;
            counts[b] += 1;
        });
        let mut starts = Vec::with_capacity(buffers.len() + 1);
        let mut sum = 0;
        starts.push(0);
        for count in &mut counts {
            let own = std::mem::replace(count, sum);
            sum += own;
            starts.push(sum);
        }
        let mut others = vec![0; sum];
        let mut next = counts;
        pairs(buffers, order, |a, b| {
            others[next[a]] = b;
            others[next[b]] = a;
            next[a] += 1;
            next[b] += 1;
        });
        Overlaps { starts, others }
    }

    /// The buffers that are live together with this one.
    pub(super) fn of(&self, index: usize) -> &[usize] {
        &self.others[self.starts[index]..self.starts[index + 1]]
    }
}

fn pairs(buffers: &[Buffer], order: &[usize], mut each: impl FnMut(usize, usize)) {
    let mut live: Vec<usize> = Vec::new();
    for &index in order {
        live.retain(|&other| buffers[other].last > buffers[index].first);
        live.iter().for_each(|&other| each(index, other));
        live.push(index);
    }
}
