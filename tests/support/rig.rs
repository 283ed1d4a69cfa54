//! What a test of the upper layers needs: a context, a stream, a pool, the demo kernels, and random tensors.

use super::demo::Ops;
use breakable_cuda_graph::driver::{Context, Device, Stream};
use breakable_cuda_graph::{CapturePool, DType, Driver, PoolOptions, Result, Tensor};

/// A device ready for captures.
pub struct Rig {
    pub driver: Driver,
    pub context: Context,
    pub stream: Stream,
    pub pool: CapturePool,
    pub ops: Ops,
}

impl Rig {
    pub fn new(driver: &Driver) -> Rig {
        Rig::with_pool(driver, PoolOptions::default())
    }

    pub fn with_pool(driver: &Driver, options: PoolOptions) -> Rig {
        Rig::try_with_pool(driver, options).expect("a device, a stream, a pool and the demo kernels")
    }

    pub fn try_new(driver: &Driver) -> Result<Rig> {
        Rig::try_with_pool(driver, PoolOptions::default())
    }

    fn try_with_pool(driver: &Driver, options: PoolOptions) -> Result<Rig> {
        let context = Device::get(driver, 0)?.primary_context()?;
        let stream = Stream::new(&context)?;
        let pool = CapturePool::with_options(&context, options)?;
        let ops = Ops::load(&context)?;
        Ok(Rig { driver: driver.clone(), context, stream, pool, ops })
    }

    pub fn is_reference(&self) -> bool {
        self.driver.is_reference()
    }

    /// Values between -1 and 1 that depend on the seed alone.
    pub fn random(&self, seed: u64, shape: &[usize]) -> Tensor {
        let values = random_values(seed, shape.iter().product());
        Tensor::from_slice(&self.stream, &values, shape).expect("a tensor")
    }

    pub fn zeros(&self, shape: &[usize]) -> Tensor {
        Tensor::zeros(&self.stream, DType::F32, shape).expect("a tensor")
    }

    pub fn ones(&self, shape: &[usize]) -> Tensor {
        let values = vec![1.0_f32; shape.iter().product()];
        Tensor::from_slice(&self.stream, &values, shape).expect("a tensor")
    }

    /// Copies a tensor's values into another of the same shape.
    pub fn copy(&self, to: &Tensor, from: &Tensor) {
        to.write(&self.stream, &self.read(from)).expect("a copy");
    }

    /// All values, after the work that is on the stream.
    pub fn read(&self, tensor: &Tensor) -> Vec<f32> {
        tensor.read(&self.stream).expect("a read")
    }
}

/// Values between -1 and 1.
pub fn random_values(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32) / (1_u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// The same bits, but for the sign of zero.
#[track_caller]
pub fn assert_same(got: &[f32], expected: &[f32]) {
    assert_close(got, expected, 0.0);
}

/// Within `tolerance`, absolutely; NaN is never close.
#[track_caller]
pub fn assert_close(got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "number of values");
    for (at, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((g - e).abs() <= tolerance, "value {at} of {}: got {g}, expected {e}", got.len());
    }
}
