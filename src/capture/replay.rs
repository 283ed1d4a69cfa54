//! The replay loop: the hot path. It allocates nothing and looks nothing up, and takes no lock but the pool's replay lock, which its caller holds.

use super::breaks::step::Ran;
use super::program::Step;
use crate::driver::{KeepAlive, Stream};
use crate::error::{Error, Result};
use crate::pool::PoolHandle;

/// Runs the steps in order. `replaced`: what patched breaks referred to before.
#[inline]
pub(super) fn run(
    steps: &mut [Step<'_>],
    stream: &Stream,
    valid_rows: Option<usize>,
    pool: &PoolHandle,
    replaced: &mut Vec<KeepAlive>,
) -> Result<()> {
    for step in steps {
        match step {
            Step::Segment { exec, index, .. } => {
                // SAFETY: the program keeps whatever the graph refers to, and its pool; their return waits for what is running.
                if let Err(error) = unsafe { exec.launch(stream) } {
                    return Err(segment_failed(*index, error));
                }
            }
            Step::Break(step) => {
                if let Err(error) = step.run(stream, valid_rows) {
                    return Err(step.failed(error));
                }
            }
            Step::Composite(composite) => {
                let ran = composite.run(stream, valid_rows, pool);
                composite.take_replaced(replaced);
                ran?;
            }
        }
    }
    Ok(())
}

/// The same for tools, with patched breaks live, and with each part shown once it has run.
pub(super) fn run_observed<'env>(
    steps: &mut [Step<'env>],
    stream: &Stream,
    valid_rows: Option<usize>,
    pool: &PoolHandle,
    replaced: &mut Vec<KeepAlive>,
    ran: &mut dyn FnMut(Ran<'_, 'env>) -> Result<()>,
) -> Result<()> {
    for at in 0..steps.len() {
        if let Step::Composite(composite) = &mut steps[at] {
            composite.run_part_by_part(stream, valid_rows, ran)?;
            continue;
        }
        run(&mut steps[at..=at], stream, valid_rows, pool, replaced)?;
        match &steps[at] {
            Step::Segment { index, .. } => ran(Ran::Segment(*index))?,
            Step::Break(step) => ran(Ran::Break(step))?,
            Step::Composite(_) => {}
        }
    }
    Ok(())
}

#[cold]
fn segment_failed(index: usize, error: Error) -> Error {
    Error::segment(index, error)
}
