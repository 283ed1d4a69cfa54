//! The seed's model: layers of two products with a break between them.

use crate::support::Rig;
use breakable_cuda_graph::{Result, Scope, Tensor};

pub struct Stack {
    pub width: usize,
    pub inner: usize,
    w1: Tensor,
    w2: Tensor,
    pub input: Tensor,
}

impl Stack {
    /// 512 wide and 2048 inside. On the reference driver narrower, as what counts is how the sizes of blocks relate.
    pub fn new(rig: &Rig, rows: usize) -> Stack {
        let (width, inner) = if rig.is_reference() { (4, 16) } else { (512, 2048) };
        let (w1, w2) = (rig.random(1, &[width, inner]), rig.random(2, &[inner, width]));
        Stack { width, inner, w1, w2, input: rig.random(3, &[rows, width]) }
    }

    pub fn forward(&self, rig: &Rig, scope: &Scope<'_, '_>, rows: usize) -> Result<Tensor> {
        let mut x = self.input.leading_rows(rows);
        for _ in 0..4 {
            let mut h = rig.ops.matmul(&x, &self.w1)?;
            let ops = rig.ops.clone();
            h = scope.break_point("relu", [&h], {
                let ops = ops.clone();
                move |b| match b.output(0) {
                    Some(y) => ops.relu_into(b.stream(), b.input(0)?, &y).map(|()| y),
                    None => ops.relu(b.input(0)?),
                }
            })?;
            x = rig.ops.matmul(&h, &self.w2)?;
        }
        Ok(x)
    }

    /// The most that lives at once: what a product reads, what it writes, and the break's handoff.
    pub fn peak(&self, rows: usize) -> usize {
        rows * (2 * self.inner + self.width) * 4
    }
}
