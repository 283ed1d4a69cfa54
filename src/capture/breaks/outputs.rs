//! What a break returns.

use crate::error::{Misuse, Result};
use crate::tensor::Tensor;

/// What a break's operation returns: one tensor, several, or none. Each has its own handoff. Types of an engine's own can be it as well: one that counts
/// badly is [`Misuse::OutputsMiscounted`], when it is recorded or replayed.
pub trait Outputs: Sized {
    /// Hands each tensor to `visit`, in order, with its index from 0 on; returns how many there were.
    ///
    /// # Errors
    /// The first that `visit` returns.
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize>;

    /// Puts the handoffs in the place of the tensors: `next` gives them in the same order, and all are taken.
    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<Self>;
}

/// Hands out results in order, and makes sure that it was so.
///
/// # Errors
/// The first that `visit` returns; [`Misuse::OutputsMiscounted`].
pub(crate) fn visit_in_order<O: Outputs>(
    results: O,
    visit: &mut dyn FnMut(usize, Tensor) -> Result<()>,
) -> Result<usize> {
    let mut visited = 0;
    let told = results.visit(&mut |index, result| {
        if index != visited {
            return Err(Misuse::OutputsMiscounted { visited, index: Some(index) }.into());
        }
        visit(index, result)?;
        visited += 1;
        Ok(())
    })?;
    if told == visited { Ok(visited) } else { Err(Misuse::OutputsMiscounted { visited, index: None }.into()) }
}

/// Makes a value of all handoffs.
///
/// # Errors
/// [`Misuse::OutputsMiscounted`] where not all are taken, or more.
pub(crate) fn gather_all<O: Outputs>(handoffs: Vec<Tensor>) -> Result<O> {
    let visited = handoffs.len();
    let mut handoffs = handoffs.into_iter();
    let gathered = O::gather(&mut || handoffs.next()).filter(|_| handoffs.next().is_none());
    gathered.ok_or_else(|| Misuse::OutputsMiscounted { visited, index: None }.into())
}

impl Outputs for () {
    fn visit(self, _visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        Ok(0)
    }

    fn gather(_next: &mut dyn FnMut() -> Option<Tensor>) -> Option<()> {
        Some(())
    }
}

impl Outputs for Tensor {
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        visit(0, self)?;
        Ok(1)
    }

    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<Tensor> {
        next()
    }
}

impl Outputs for Vec<Tensor> {
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        let count = self.len();
        self.into_iter().enumerate().try_for_each(|(index, tensor)| visit(index, tensor))?;
        Ok(count)
    }

    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<Vec<Tensor>> {
        Some(std::iter::from_fn(next).collect())
    }
}

impl<const N: usize> Outputs for [Tensor; N] {
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        self.into_iter().enumerate().try_for_each(|(index, tensor)| visit(index, tensor))?;
        Ok(N)
    }

    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<[Tensor; N]> {
        let tensors: Vec<Tensor> = std::iter::from_fn(next).take(N).collect();
        tensors.try_into().ok()
    }
}

impl Outputs for (Tensor, Tensor) {
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        [self.0, self.1].visit(visit)
    }

    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<(Tensor, Tensor)> {
        Some((next()?, next()?))
    }
}

impl Outputs for (Tensor, Tensor, Tensor) {
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        [self.0, self.1, self.2].visit(visit)
    }

    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<(Tensor, Tensor, Tensor)> {
        Some((next()?, next()?, next()?))
    }
}
