//! Sentences to batches.

use super::program::batches::{Packed, pack};
use super::program::text::Sentence;
use proptest::prelude::*;

fn sentences(lengths: &[usize]) -> Vec<Sentence> {
    let sentence =
        |(index, length): (usize, &usize)| Sentence { text: index.to_string(), ids: vec![index as i32; *length] };
    lengths.iter().enumerate().map(sentence).collect()
}

proptest! {
    #[test]
    fn every_sentence_is_in_one_batch_and_no_batch_is_too_long(
        lengths in prop::collection::vec(1..40_usize, 0..200),
        limit in 1..64_usize,
    ) {
        let sentences = sentences(&lengths);
        let batches = pack(&sentences, limit);
        let mut seen = vec![0; lengths.len()];
        for batch in &batches {
            prop_assert!(!batch.members.is_empty());
            prop_assert!(batch.tokens() <= limit || batch.members.len() == 1);
            prop_assert_eq!(batch, &Packed::of(&sentences, batch.members.clone()));
            prop_assert_eq!(batch.offsets.len(), batch.members.len() + 1);
            for (at, member) in batch.members.iter().enumerate() {
                seen[*member] += 1;
                let range = batch.offsets[at] as usize..batch.offsets[at + 1] as usize;
                prop_assert!(batch.ids[range.clone()].iter().all(|id| *id == *member as i32));
                prop_assert_eq!(range.len(), lengths[*member]);
                prop_assert_eq!(batch.places[range.start], 0);
            }
        }
        prop_assert!(seen.iter().all(|count| *count == 1));
        // No two batches could be one.
        let mut fullness: Vec<usize> = batches.iter().map(Packed::tokens).collect();
        fullness.sort_unstable();
        if let [first, second, ..] = fullness[..] {
            prop_assert!(first + second > limit, "{fullness:?}");
        }
        prop_assert_eq!(pack(&sentences, limit), batches);
    }
}

#[test]
fn longest_first_each_where_it_fills_best() {
    let sentences = sentences(&[2, 7, 3, 5, 8]);
    let members: Vec<Vec<usize>> = pack(&sentences, 10).into_iter().map(|batch| batch.members).collect();
    assert_eq!(members, [vec![4, 0], vec![1, 2], vec![3]]);
    assert!(pack(&[], 10).is_empty());
}
