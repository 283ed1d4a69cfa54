//! What is left of the search budget.

use super::types::SearchBudget;
use std::time::Instant;

/// How many steps pass between two looks at the clock.
const INTERVAL: u64 = 256;

/// The search budget, as it is used up.
#[derive(Debug)]
pub(super) struct Budget {
    steps: u64,
    until: Option<Instant>,
    used: u64,
}

impl Budget {
    pub(super) fn new(budget: SearchBudget) -> Budget {
        match budget {
            SearchBudget::Steps(steps) => Budget { steps, until: None, used: 0 },
            // Later than the clock can say is never.
            SearchBudget::Time(time) => Budget { steps: u64::MAX, until: Instant::now().checked_add(time), used: 0 },
        }
    }

    /// Whether something is left.
    pub(super) fn is_left(&mut self) -> bool {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            self.steps = self.used;
        }
        self.used < self.steps
    }

    /// Uses one step. False when none is left.
    pub(super) fn step(&mut self) -> bool {
        if self.used >= self.steps {
            return false;
        }
        self.used += 1;
        !self.used.is_multiple_of(INTERVAL) || self.is_left()
    }
}
