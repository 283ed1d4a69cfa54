//! Patched breaks around a matrix product of a library, whose kernels are one or two depending on the rows of the batch.

use super::soak::{turns, unchanged_by};
use crate::blas::Blas;
use crate::support::demo::Weight;
use crate::support::{Rig, assert_same, driver, random_values};
use breakable_cuda_graph::{
    Break, BreakOptions, BreakableCapture, DType, Error, Misuse, ReplayOptions, Result, Scope, Tensor, active_forward,
    eager,
};

/// What a batch is: its rows, and a factor.
#[derive(Clone, Copy, Debug)]
struct Batch {
    rows: usize,
    factor: f32,
}

/// Two layers, each with a break that multiplies the rows of the batch by a weight.
struct Model<'r> {
    rig: &'r Rig,
    /// On a device the library's; the demo kernel otherwise, in two launches where there are many rows.
    blas: Option<Blas>,
    weight: Tensor,
    rows: usize,
}

impl<'r> Model<'r> {
    fn new(rig: &'r Rig) -> Model<'r> {
        let (rows, width) = if rig.is_reference() { (24, 16) } else { (4096, 512) };
        let blas = if rig.is_reference() { None } else { Blas::load(&rig.context, false).expect("cuBLAS") };
        assert!(rig.is_reference() || blas.is_some(), "this test needs cuBLAS on a device");
        Model { rig, blas, weight: rig.random(5, &[width, width]), rows }
    }

    fn width(&self) -> usize {
        self.weight.shape()[0]
    }

    /// `y = x wᵀ`.
    fn product(&self, b: &Break<'_>, x: &Tensor, y: &Tensor) -> Result<()> {
        if let Some(blas) = &self.blas {
            return Ok(blas.product(b.stream(), x, &self.weight, y)?);
        }
        let part = if x.rows() > self.rows / 2 { self.rows / 2 } else { x.rows() };
        for (first, rows) in [(0, part), (part, x.rows() - part)] {
            let narrow = |tensor: &Tensor| tensor.narrow(0, first, rows);
            let weight = Weight::Transposed(&self.weight);
            self.rig.ops.linear_into(b.stream(), &narrow(x)?, weight, None, &narrow(y)?)?;
        }
        Ok(())
    }

    fn attend(&self, b: &Break<'_>) -> Result<Tensor> {
        let batch = *b.forward_ctx::<Batch>()?;
        let handoff = b.output(0).ok_or(Error::Misuse(Misuse::NoForward))?;
        let (x, y) = (b.input(0)?.leading_rows(batch.rows), handoff.leading_rows(batch.rows));
        let scaled = b.empty(DType::F32, b.input(0)?.shape())?.leading_rows(batch.rows);
        self.rig.ops.scale_into(b.stream(), &x, batch.factor, &scaled)?;
        self.product(b, &scaled, &y)?;
        Ok(handoff)
    }

    fn forward<'m>(&'m self, scope: &Scope<'_, 'm>, x: &Tensor) -> Result<Tensor> {
        let mut h = self.rig.ops.scale(x, 0.5)?;
        for layer in 0..2 {
            let options = BreakOptions::new(format!("product {layer}")).patched();
            let y = scope.break_here(options, self.rig.ops.empty_like(&h)?, [&h], |b| self.attend(b))?;
            h = self.rig.ops.add(&y, &h)?;
        }
        self.rig.ops.relu(&h)
    }
}

/// A capture of the model, and the batches that it is replayed with.
struct Captured<'m> {
    model: &'m Model<'m>,
    capture: BreakableCapture<'m>,
    x: Tensor,
    out: Tensor,
    batches: Vec<Batch>,
}

impl<'m> Captured<'m> {
    fn new(model: &'m Model<'m>) -> Captured<'m> {
        let rig = model.rig;
        let x = rig.random(1, &[model.rows, model.width()]);
        let whole = Batch { rows: model.rows, factor: 1.0 };
        drop(
            active_forward(&whole, || eager(&rig.pool, &rig.stream, |scope| model.forward(scope, &x))).expect("eager"),
        );
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let recorded = active_forward(&whole, || capture.record(&rig.stream, |scope| model.forward(scope, &x)));
        let values = random_values(31, 2000);
        let batches = values.chunks(2).map(|pair| {
            // As many small ones as large ones: where a library changes its kernels is not known.
            let rows = (model.rows as f32).powf(pair[0].abs()) as usize;
            Batch { rows: rows.clamp(1, model.rows - 1), factor: pair[1] }
        });
        let (out, batches) = (recorded.expect("a recording"), batches.collect());
        Captured { model, capture, x, out, batches }
    }

    fn replay(&mut self, batch: &Batch) {
        let options = ReplayOptions::default().valid_rows(batch.rows);
        let stream = &self.model.rig.stream;
        active_forward(batch, || self.capture.replay_with(stream, options).map(|_| ())).expect("a replay");
    }

    /// What an eager run gives.
    fn expected(&self, batch: &Batch) -> Tensor {
        let rig = self.model.rig;
        active_forward(batch, || eager(&rig.pool, &rig.stream, |scope| self.model.forward(scope, &self.x)))
            .expect("eager")
    }
}

#[test]
fn a_thousand_products_of_one_or_two_kernels_equal_eager() {
    let rig = Rig::new(&driver());
    let model = Model::new(&rig);
    let mut captured = Captured::new(&model);
    for batch in captured.batches.clone() {
        captured.replay(&batch);
        let got = rig.read(&captured.out.leading_rows(batch.rows));
        assert_same(&got, &rig.read(&captured.expected(&batch).leading_rows(batch.rows)));
    }
    let stats = captured.capture.patch_stats();
    let bodies = 2 * captured.batches.len() as u64;
    assert_eq!(stats.patched + stats.unchanged + 2 * (stats.rebuilt + stats.fell_back), bodies, "{stats:?}");
    assert!(stats.execs > 1, "products of one and of two kernels: {stats:?}");
}

#[test]
fn nothing_grows_with_products() {
    let rig = Rig::new(&driver());
    let model = Model::new(&rig);
    let mut captured = Captured::new(&model);
    let small: Vec<Batch> = captured.batches.iter().filter(|batch| batch.rows < 512).copied().collect();
    let mut replays = |count: usize| (0..count).for_each(|turn| captured.replay(&small[turn % small.len()]));
    // All shapes that there are, and what libraries and the driver make at first.
    replays(small.len());
    unchanged_by(&rig, || replays(turns(&rig, 1000)));
}
