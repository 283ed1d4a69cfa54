//! The smallest whole program: a forward of two segments and a live break, recorded once and replayed with other values.
//!
//! `cargo run --example hello`

use breakable_cuda_graph::driver::{Device, Stream};
use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Driver, Tensor, active_forward};

/// What the break reads live: the page of a cache that belongs to the batch.
struct Batch {
    page: usize,
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = Driver::load().or_else(|_| Driver::reference())?;
    println!("driver: {}", driver.origin());
    let context = Device::get(&driver, 0)?.primary_context()?;
    let (stream, pool) = (Stream::new(&context)?, CapturePool::new(&context)?);
    let cache = Tensor::from_slice(&stream, &[10_i32, 11, 20, 21, 30, 31], &[3, 2])?;
    let input = Tensor::zeros(&stream, DType::I32, &[1, 2])?; // A static input: replays read this address.

    let mut capture = BreakableCapture::new(&pool)?;
    let outputs = active_forward(&Batch { page: 0 }, || {
        capture.record(&stream, |scope| {
            let query = scope.empty(DType::I32, &[1, 2])?;
            query.copy_from(&scope.stream()?, &input)?; // Into the first segment.
            let found = scope.break_point("attention", [&query], |b| {
                let Batch { page } = b.forward_ctx()?; // On every replay.
                cache.narrow(0, *page, 1)
            })?;
            let outputs = scope.empty(DType::I32, &[2, 2])?; // Into the second segment.
            outputs.narrow(0, 0, 1)?.copy_from(&scope.stream()?, &query)?;
            outputs.narrow(0, 1, 1)?.copy_from(&scope.stream()?, &found)?;
            Ok(outputs)
        })
    })?;

    for page in [1, 2] {
        input.write(&stream, &[page as i32; 2])?;
        let _ = active_forward(&Batch { page }, || capture.replay(&stream))?;
        let values = outputs.read::<i32>(&stream)?;
        println!("page {page}: {values:?}");
        let (query, first) = (page as i32, 10 * page as i32 + 10);
        assert_eq!(values, [query, query, first, first + 1]);
    }
    Ok(())
}
