//! What a break returns.

use crate::error::Result;
use crate::tensor::Tensor;

/// What a break's operation returns: one tensor, several, or none. Each has its own handoff.
pub trait Outputs: Sized {
    /// Hands each tensor to `visit`, in order, with its index; returns how many there were.
    ///
    /// # Errors
    /// The first that `visit` returns.
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize>;

    /// Puts the handoffs in the place of the tensors: `next` gives them in the same order.
    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<Self>;
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
