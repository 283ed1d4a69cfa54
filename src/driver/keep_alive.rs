//! Ownership without a type.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

/// Whatever must stay alive as long as something else is used: the owner of a borrowed handle, what a graph's nodes refer to.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// Adds to a short list of what is kept, unless it is there.
pub(crate) fn keep(kept: &mut Vec<KeepAlive>, what: &KeepAlive) {
    // The latest are the likeliest: a layer's weights are used in runs.
    if !kept.iter().rev().any(|held| Arc::ptr_eq(held, what)) {
        kept.push(what.clone());
    }
}

/// What is kept, each thing once, however many there are.
#[derive(Default)]
pub(crate) struct KeptSet {
    list: Vec<KeepAlive>,
    /// Where each of the list lies, once there are more than are quickly looked through.
    places: HashSet<usize>,
}

/// How many are quickly looked through.
const FEW: usize = 16;

impl KeptSet {
    /// Adds one, unless it is there.
    pub(crate) fn keep(&mut self, what: &KeepAlive) {
        if self.list.len() < FEW {
            return keep(&mut self.list, what);
        }
        if self.places.is_empty() {
            self.places.extend(self.list.iter().map(place));
        }
        if self.places.insert(place(what)) {
            self.list.push(what.clone());
        }
    }

    /// Takes all.
    pub(crate) fn take(&mut self) -> Vec<KeepAlive> {
        self.places.clear();
        std::mem::take(&mut self.list)
    }
}

fn place(kept: &KeepAlive) -> usize {
    Arc::as_ptr(kept).cast::<()>() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_kept_once_and_all_are_given_in_order() {
        let all: Vec<KeepAlive> = (0..3 * FEW).map(|number| -> KeepAlive { Arc::new(number) }).collect();
        let mut set = KeptSet::default();
        for _ in 0..2 {
            all.iter().for_each(|one| set.keep(one));
        }
        set.keep(&all[FEW - 1]);
        let taken = set.take();
        assert!(taken.iter().map(place).eq(all.iter().map(place)));
        set.keep(&all[0]);
        assert_eq!((set.take().len(), set.take().len()), (1, 0));
    }
}
