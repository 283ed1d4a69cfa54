//! Sentences to batches.

use super::text::Sentence;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Sentences as one run of tokens.
#[derive(Clone, PartialEq, Debug)]
pub struct Packed {
    /// Which sentences, by their place in the text.
    pub members: Vec<usize>,
    pub ids: Vec<i32>,
    /// The place of each token in its sentence.
    pub places: Vec<i32>,
    /// Where each sentence begins, and where the last ends.
    pub offsets: Vec<i32>,
}

impl Packed {
    /// These sentences, in this order.
    pub fn of(sentences: &[Sentence], members: Vec<usize>) -> Packed {
        let mut packed = Packed { ids: Vec::new(), places: Vec::new(), offsets: vec![0], members };
        for &member in &packed.members {
            let ids = &sentences[member].ids;
            packed.ids.extend(ids);
            packed.places.extend(0..ids.len() as i32);
            packed.offsets.push(packed.ids.len() as i32);
        }
        packed
    }

    /// No sentence, for a rank that has none left.
    pub fn empty() -> Packed {
        Packed::of(&[], Vec::new())
    }

    /// Real tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }
}

/// Batches of at most `limit` tokens, but for a sentence that is longer, which is alone in its batch. Longest first, each into the batch that it fills
/// best; so equal texts give equal batches.
pub fn pack(sentences: &[Sentence], limit: usize) -> Vec<Packed> {
    let mut order: Vec<usize> = (0..sentences.len()).collect();
    order.sort_by_key(|&index| (Reverse(sentences[index].ids.len()), index));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    // Batches by the room that is left in them.
    let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for index in order {
        let tokens = sentences[index].ids.len();
        let found = open.range(tokens..).next().map(|(room, _)| *room);
        let (batch, room) = match found.and_then(|room| Some((open.get_mut(&room)?.pop()?, room))) {
            Some(found) => found,
            None => {
                batches.push(Vec::new());
                (batches.len() - 1, limit.max(tokens))
            }
        };
        if open.get(&room).is_some_and(Vec::is_empty) {
            open.remove(&room);
        }
        batches[batch].push(index);
        open.entry(room - tokens).or_default().push(batch);
    }
    batches.into_iter().map(|members| Packed::of(sentences, members)).collect()
}
