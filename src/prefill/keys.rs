//! The keys under which a runner's captures are made.

use super::ladder::{Bucket, Ladder};
use std::ops::Range;

/// The keys, each with a number that stays while it is there.
pub(super) struct Keys<K> {
    keys: Vec<Option<K>>,
    /// Buckets of the ladder.
    buckets: usize,
}

impl<K: PartialEq> Keys<K> {
    /// One key, over so many buckets.
    pub(super) fn new(key: K, buckets: usize) -> Keys<K> {
        Keys { keys: vec![Some(key)], buckets }
    }

    /// The keys, in the order of their numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = &K> {
        self.keys.iter().flatten()
    }

    /// Whether there is more than one.
    pub(super) fn are_several(&self) -> bool {
        self.all().nth(1).is_some()
    }

    pub(super) fn number_of(&self, key: &K) -> Option<usize> {
        self.keys.iter().position(|own| own.as_ref() == Some(key))
    }

    /// The key that a bucket's capture is made under.
    pub(super) fn of(&self, bucket: Bucket) -> Option<&K> {
        self.keys.get(bucket.slot.checked_div(self.buckets)?)?.as_ref()
    }

    /// Adds a key that is not there, with the lowest number that is free.
    pub(super) fn add(&mut self, key: K) {
        match self.keys.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(key),
            None => self.keys.push(Some(key)),
        }
    }

    /// Removes a key, and gives the places of its captures.
    pub(super) fn remove(&mut self, key: &K) -> Option<Range<usize>> {
        let number = self.number_of(key)?;
        self.keys[number] = None;
        Some(number * self.buckets..(number + 1) * self.buckets)
    }

    /// Places for captures.
    pub(super) fn places(&self) -> usize {
        self.keys.len() * self.buckets
    }

    /// All buckets under all keys, the largest first.
    pub(super) fn descending(&self, ladder: &Ladder) -> Vec<Bucket> {
        let numbers = || (0..self.keys.len()).filter(|number| self.keys[*number].is_some());
        ladder.descending().flat_map(|bucket| numbers().map(move |number| ladder.under(bucket, number))).collect()
    }
}
